// SPDX-License-Identifier: Apache-2.0
#include "config/cross_checks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/convert.hpp"
#include "config/field.hpp"
#include "config/printing.hpp"
#include "deltaport/config/checks.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::config {
namespace {

constexpr std::int64_t max_pass_tokens = std::numeric_limits<std::int32_t>::max();  // positions are int32

class Rules {
 public:
  Rules(const RunConfig& config, const std::function<bool(const std::string&)>& usable,
        const ReportRule& report)
      : c_(config), usable_(usable), report_(report) {}

  void batch() {
    rule({"train.micro_batch", "data.seq_len"}, [&] {
      if (c_.data.seq_len * c_.train.micro_batch <= max_pass_tokens) return std::string();
      return concat("'train.micro_batch' * data.seq_len = ", c_.train.micro_batch, " * ", c_.data.seq_len,
                    " is more than one pass can hold: ", max_pass_tokens);
    });
    const std::int64_t per_pass = c_.data.seq_len * c_.train.micro_batch;
    rule({"train.global_batch_tokens", "train.micro_batch", "data.seq_len"}, [&] {
      if (c_.train.global_batch_tokens % per_pass == 0) return std::string();
      return concat("'train.global_batch_tokens' = ", c_.train.global_batch_tokens,
                    " must be a multiple of data.seq_len * train.micro_batch = ", c_.data.seq_len, " * ",
                    c_.train.micro_batch, " = ", per_pass);
    });
  }

  void heads() {
    const LinearMixerConfig& linear = c_.model.linear;
    const AttentionConfig& attention = c_.model.attention;
    rule({"model.linear.num_value_heads", "model.linear.num_key_heads"}, [&] {
      if (linear.num_value_heads % linear.num_key_heads == 0) return std::string();
      return concat("'model.linear.num_value_heads' = ", linear.num_value_heads,
                    " must be a multiple of num_key_heads = ", linear.num_key_heads);
    });
    rule({"model.attention.num_heads", "model.attention.num_kv_heads"}, [&] {
      if (attention.num_heads % attention.num_kv_heads == 0) return std::string();
      return concat("'model.attention.num_heads' = ", attention.num_heads,
                    " must be a multiple of num_kv_heads = ", attention.num_kv_heads);
    });
    rule({"model.attention.partial_rotary_factor", "model.attention.head_dim"}, [&] {
      const double dims = attention.partial_rotary_factor * static_cast<double>(attention.head_dim);
      const double rounded = std::round(dims);
      const bool even =
          std::abs(dims - rounded) < 1e-9 * dims && std::fmod(rounded, 2.0) == 0.0 && rounded > 0;
      if (even) return std::string();
      return concat("'model.attention.partial_rotary_factor' * head_dim = ", attention.partial_rotary_factor,
                    " * ", attention.head_dim, " = ", dims, " must be an even number of rotary dimensions");
    });
  }

  void schedule() {
    const ScheduleConfig& s = c_.schedule;
    rule({"schedule.warmup", "train.steps"}, [&] {
      if (s.warmup < c_.train.steps) return std::string();
      return concat("'schedule.warmup' = ", s.warmup, " must be less than train.steps = ", c_.train.steps);
    });
    rule({"schedule.decay", "schedule.name", "schedule.warmup", "train.steps"}, [&] {
      if (s.name != ScheduleName::wsd)
        return s.decay == 0 ? "" : concat("'schedule.decay' = ", s.decay, " is only for schedule.name wsd");
      if (s.decay < 1) return std::string("'schedule.decay' must be >= 1 with schedule.name wsd");
      if (s.decay <= c_.train.steps - s.warmup) return std::string();
      return concat("'schedule.decay' = ", s.decay, " plus warmup = ", s.warmup,
                    " must not exceed train.steps = ", c_.train.steps);
    });
  }

  void offload() {
    const OffloadConfig& o = c_.offload;
    rule({"offload.enabled", "offload.scopes", "graph.scope"}, [&] {
      const bool moves_mlp = o.enabled && std::ranges::find(o.scopes, OffloadScope::mlp) != o.scopes.end();
      if (!moves_mlp || c_.graph.scope != GraphScope::attention) return std::string();
      return std::string(
          "'offload.scopes' lists mlp, which graph.scope = attention leaves out of the captured graphs: what "
          "is "
          "saved there cannot be moved between their replays; use graph.scope layer or step, or take mlp "
          "away");
    });
    rule({"offload.enabled", "offload.scopes", "recompute.gdn_core_inputs", "recompute.gdn_preparation",
          "recurrence.implementation", "train.precision"},
         [&] {
           const bool moves_core =
               o.enabled && std::ranges::find(o.scopes, OffloadScope::gdn_core_attn) != o.scopes.end();
           if (!moves_core || c_.recompute.gdn_core_inputs != CoreInputsAgain::all || may_keep_preparation())
             return std::string();
           return std::string(
               "'recompute.gdn_core_inputs' = all leaves nothing for gdn_core_attn of 'offload.scopes' to "
               "move: "
               "take gates or none, or take gdn_core_attn away");
         });
    rule({"offload.max_inflight", "offload.slots"}, [&] {
      if (o.max_inflight <= o.slots) return std::string();
      return concat("'offload.max_inflight' = ", o.max_inflight,
                    " must not exceed offload.slots = ", o.slots);
    });
    for (std::size_t i = 0; i < o.scopes.size(); ++i) scope(i);
  }

  void evaluation() {
    rule({"eval.every", "data.valid"}, [&] {
      if (c_.eval.every == 0 || !c_.data.valid.empty()) return std::string();
      return concat("'eval.every' = ", c_.eval.every, " needs token files in data.valid");
    });
  }

  void graphs() {
    const GraphConfig& graph = c_.graph;
    rule({"graph.warmup_steps", "graph.scope", "train.steps"}, [&] {
      if (graph.scope == GraphScope::none) return std::string();
      if (graph.warmup_steps < 1)
        return concat("'graph.warmup_steps' must be >= 1 with graph.scope ", name_of(graph.scope),
                      ": an eager step loads the kernels and measures the memory that a capture needs");
      if (graph.warmup_steps < c_.train.steps) return std::string();
      return concat("'graph.warmup_steps' = ", graph.warmup_steps,
                    " leaves none of train.steps = ", c_.train.steps, " to be captured");
    });
  }

 private:
  // Whether the recurrences may be those that leave more than their inputs for backward; which `auto` takes, only the
  // machine that runs it knows.
  bool may_keep_preparation() const {
    const RecurrenceName implementation = c_.recurrence.implementation;
    return !c_.recompute.gdn_preparation && c_.train.precision == Precision::bfloat16 &&
           (implementation == RecurrenceName::automatic || implementation == RecurrenceName::cuda);
  }
  void scope(std::size_t i) {
    const std::vector<OffloadScope>& scopes = c_.offload.scopes;
    const std::string_view name = name_of(scopes[i]);
    const auto here = scopes.begin() + static_cast<std::ptrdiff_t>(i);
    rule({"offload.scopes"}, [&] {
      if (std::find(scopes.begin(), here, scopes[i]) == here) return std::string();
      return concat("'offload.scopes' lists ", name, " twice");
    });
    rule({"offload.scopes", "offload.enabled", "model.layer_pattern", "model.num_hidden_layers"}, [&] {
      if (!c_.offload.enabled || scopes[i] == OffloadScope::mlp) return std::string();
      const bool wants_attention = scopes[i] == OffloadScope::attn_core;
      for (std::int64_t layer = 0; layer < c_.model.num_hidden_layers; ++layer)
        if ((c_.model.layer_type(layer) == LayerType::attention) == wants_attention) return std::string();
      return concat("'offload.scopes' lists ", name, ", but the model has no ",
                    wants_attention ? "attention" : "gdn or gdn2", " layer");
    });
  }

  template <class Check>
  void rule(const std::vector<std::string>& paths, const Check& check) {
    if (!std::ranges::all_of(paths, usable_)) return;
    const std::string message = check();
    if (!message.empty()) report_(paths, message);
  }

  const RunConfig& c_;
  const std::function<bool(const std::string&)>& usable_;
  const ReportRule& report_;
};

}  // namespace

void check_rules(const RunConfig& config, const std::function<bool(const std::string&)>& usable,
                 const ReportRule& report) {
  Rules rules(config, usable, report);
  rules.batch();
  rules.heads();
  rules.schedule();
  rules.offload();
  rules.evaluation();
  rules.graphs();
}

}  // namespace deltaport::config

namespace deltaport {

void check_config(const RunConfig& config) {
  std::vector<std::string> problems;
  std::vector<std::string> unusable;
  for (const config::Field& field : config::fields()) {
    const config::Value value = field.binding.get(config);
    const std::string problem = config::problem_of(field, value);
    if (problem.empty()) continue;
    problems.push_back(concat("'", field.path, "' = ", config::yaml_text(value), " ", problem));
    unusable.emplace_back(field.path);
  }
  config::check_rules(
      config, [&](const std::string& path) { return std::ranges::find(unusable, path) == unusable.end(); },
      [&](const std::vector<std::string>&, const std::string& message) { problems.push_back(message); });
  if (problems.empty()) return;
  std::string text =
      concat("the configuration has ", problems.size(), problems.size() == 1 ? " error" : " errors");
  for (const std::string& problem : problems) text += "\n  " + problem;
  throw ConfigError(text);
}

std::int64_t check_ranks(const RunConfig& config, int ranks) {
  DELTAPORT_VALIDATE(ranks >= 1, ConfigError, "check_ranks: ranks = ", ranks, " must be >= 1");
  std::int64_t per_pass = 0;
  if (__builtin_mul_overflow(config.data.seq_len, config.train.micro_batch, &per_pass) ||
      __builtin_mul_overflow(per_pass, ranks, &per_pass))
    per_pass = std::numeric_limits<std::int64_t>::max();  // then no batch is large enough
  const std::int64_t total = config.train.global_batch_tokens;
  DELTAPORT_VALIDATE(per_pass > 0 && total >= per_pass && total % per_pass == 0, ConfigError,
                     "train.global_batch_tokens = ", total,
                     " must be a multiple of data.seq_len * train.micro_batch * ranks = ",
                     config.data.seq_len, " * ", config.train.micro_batch, " * ", ranks, " = ", per_pass,
                     ": change train.global_batch_tokens, train.micro_batch or the number of ranks");
  return total / per_pass;
}

std::vector<IdentityDifference> identity_differences(const RunConfig& before, const RunConfig& after) {
  std::vector<IdentityDifference> differences;
  for (const config::Field& field : config::fields()) {
    if (field.on_resume == config::OnResume::free) continue;
    const config::Value old_value = field.binding.get(before);
    const config::Value new_value = field.binding.get(after);
    if (!config::same_value(old_value, new_value))
      differences.push_back(
          {std::string(field.path), config::yaml_text(old_value), config::yaml_text(new_value)});
  }
  return differences;
}

}  // namespace deltaport
