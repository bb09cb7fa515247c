// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/run_plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "config/field.hpp"
#include "deltaport/config/checks.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/offload/schedule.hpp"
#include "deltaport/train/training_run.hpp"
#include "train/number_format.hpp"

namespace deltaport {
namespace {

std::int64_t sum(const std::vector<SizeEntry>& entries) {
  std::int64_t total = 0;
  for (const SizeEntry& entry : entries) total += entry.amount;
  return total;
}

std::string mib(std::int64_t bytes) {
  return train::formatted("%.1f", static_cast<double>(bytes) / 1048576.0);
}

std::string row(const std::string& label, const std::string& value, const std::string& note = "") {
  char line[256];
  std::snprintf(line, sizeof line, "  %-28s %16s  %s\n", label.c_str(), value.c_str(), note.c_str());
  std::string text = line;
  while (text.size() > 1 && text[text.size() - 2] == ' ') text.erase(text.size() - 2, 1);
  return text;
}

// As the buffers are: padded to 64 elements between parameters.
template <class T>
std::vector<SizeEntry> static_memory(const RunConfig& config) {
  const HybridLm<T> model(config.model, lm_options(config));
  const ParameterSet<T>& parameters = model.parameters();
  constexpr auto wide = static_cast<std::int64_t>(sizeof(Accumulate<T>));
  const std::int64_t flat = parameters.flat_size() * wide;
  std::vector<SizeEntry> entries;
  if constexpr (is_half<T>) {
    entries.push_back(
        {"weights (bfloat16)", parameters.flat_size(Kept::rounded) * static_cast<std::int64_t>(sizeof(T))});
    entries.push_back({"master weights (float32)", flat});
  } else {
    entries.push_back({"weights (float32)", flat});
  }
  entries.push_back({"gradients (float32)", flat});
  entries.push_back({"AdamW moments (2 x float32)", 2 * flat});
  return entries;
}

// None when offload is off.
std::vector<SavedGroupSize> groups_in_scope(const RunConfig& config, std::int64_t tokens) {
  if (!config.offload.enabled) return {};
  std::vector<SavedGroupSize> groups =
      saved_groups(config.model, tokens, model_dtype(config), lm_options(config), config.data.seq_len);
  const auto& scopes = config.offload.scopes;
  std::erase_if(groups, [&](const SavedGroupSize& group) {
    return std::ranges::find(scopes, value_of<OffloadScope>(group.scope)) == scopes.end();
  });
  return groups;
}

std::int64_t movable_bytes(const RunConfig& config, std::int64_t tokens) {
  std::int64_t bytes = 0;
  for (const SavedGroupSize& group : groups_in_scope(config, tokens))
    for (const SavedTensorSize& tensor : group.tensors) bytes += tensor.bytes;
  return bytes;
}

// The plan that offload follows after its warm-up.
offload::Schedule offload_schedule(const RunConfig& config, std::int64_t tokens) {
  const OffloadConfig& o = config.offload;
  offload::Schedule schedule({o.fraction, o.keep_last, o.slots});
  for (const SavedGroupSize& group : groups_in_scope(config, tokens)) {
    offload::GroupShape shape{group.scope, {}};
    for (const SavedTensorSize& tensor : group.tensors)
      if (tensor.elements >= std::max<std::int64_t>(1, o.min_tensor_elements))
        shape.bytes.push_back(static_cast<std::size_t>(tensor.bytes));
    if (!shape.bytes.empty()) schedule.next(shape);
  }
  schedule.end_forward();
  return schedule;
}

std::int64_t offloaded_bytes(const offload::Schedule& schedule) {
  std::size_t bytes = 0;
  for (const auto& group : schedule.plan()) bytes += group.moved_bytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

std::int64_t RunPlan::static_bytes() const {
  return sum(static_memory);
}
std::int64_t RunPlan::total_bytes() const {
  return static_bytes() + activations.saved_bytes() - offloaded_bytes + activations.workspace_bytes;
}

RunPlan make_plan(const RunConfig& config, int ranks) {
  RunPlan plan;
  plan.ranks = ranks;
  plan.micro_batches = check_ranks(config, ranks);
  plan.parameters = parameter_breakdown(config.model);
  plan.parameter_count = parameter_count(config.model);
  plan.tokens_per_step = config.train.global_batch_tokens;
  DELTAPORT_VALIDATE(!__builtin_mul_overflow(plan.tokens_per_step, config.train.steps, &plan.total_tokens),
                     ConfigError, "train.steps x train.global_batch_tokens is beyond 2^63 tokens");
  DELTAPORT_VALIDATE(
      plan.parameter_count > 0 && plan.parameter_count < (std::int64_t{1} << 50), ConfigError,
      "the model would have more than 2^50 parameters; check model.hidden_size, intermediate_size, "
      "vocab_size and num_hidden_layers");
  plan.static_memory =
      model_dtype(config) == Dtype::bf16 ? static_memory<bfloat16>(config) : static_memory<float>(config);
  plan.activations = activation_size(config.model, config.train.micro_batch * config.data.seq_len,
                                     model_dtype(config), lm_options(config), config.data.seq_len);
  const offload::Schedule schedule = offload_schedule(config, config.train.micro_batch * config.data.seq_len);
  plan.saved_groups = static_cast<std::int64_t>(schedule.plan().size());
  plan.moving_groups = std::ranges::count_if(schedule.plan(), [](const auto& group) { return group.moves; });
  plan.offloaded_bytes = offloaded_bytes(schedule);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  plan.pinned_bytes = static_cast<std::int64_t>((schedule.host_bytes() + page - 1) / page * page);
  plan.fitting_fraction =
      schedule.fraction_within(static_cast<std::size_t>(config.offload.pinned_limit) / page * page);
  if (config.offload.enabled) plan.why_nothing_moves = schedule.why_nothing_moves();
  return plan;
}

std::int64_t largest_micro_batch(const RunConfig& config, int ranks, std::int64_t bytes) {
  const std::int64_t left = bytes - make_plan(config, ranks).static_bytes();
  const auto activations = [&](std::int64_t tokens) {
    return activation_size(config.model, tokens, model_dtype(config), lm_options(config),
                           config.data.seq_len);
  };
  // Saved activations grow with the tokens: beyond this many those that cannot move alone take more. One pass counts its
  // tokens in 32 bits, and the key has a range. What comes by whole chunks says nothing of one token.
  RunConfig lean = config;
  lean.recompute.gdn_preparation = true;
  const std::int64_t staying = std::max<std::int64_t>(
      1, activation_size(config.model, 1, model_dtype(config), lm_options(lean)).saved_bytes() -
             movable_bytes(lean, 1));
  const std::int64_t most_tokens =
      std::min<std::int64_t>(left / staying, std::numeric_limits<std::int32_t>::max());
  const auto most = std::min(most_tokens / config.data.seq_len,
                             static_cast<std::int64_t>(config::find_field("train.micro_batch")->range.most));
  const std::int64_t samples = config.train.global_batch_tokens / (config.data.seq_len * ranks);
  std::int64_t best = 0;
  // Divisors come in pairs (d, samples / d).
  for (std::int64_t d = 1; d <= samples / d; ++d) {
    if (samples % d != 0) continue;
    for (const std::int64_t micro_batch : {d, samples / d}) {
      if (micro_batch <= best || micro_batch > most) continue;
      const std::int64_t tokens = micro_batch * config.data.seq_len;
      const ActivationSize size = activations(tokens);
      const std::int64_t away = offloaded_bytes(offload_schedule(config, tokens));
      if (size.saved_bytes() - away + size.workspace_bytes <= left) best = micro_batch;
    }
  }
  return best;
}

namespace {

std::string offload_text(const RunPlan& plan, const OffloadConfig& offload) {
  if (!plan.why_nothing_moves.empty())
    return concat("  offload moves nothing: ", plan.why_nothing_moves, "\n");
  std::string text =
      row("pinned host memory", mib(plan.pinned_bytes), "once per rank; a little more while it warms up");
  if (offload.pinned_limit > 0 && plan.pinned_bytes > offload.pinned_limit)
    text +=
        concat("  that is more than offload.pinned_limit allows: ", plan.pinned_bytes,
               " bytes, the limit is ", offload.pinned_limit, "; ",
               plan.fitting_fraction > 0.0 ? concat("offload.fraction: ", plan.fitting_fraction, " would fit")
                                           : std::string("not even one group fits"),
               "\n");
  return text;
}

}  // namespace

std::string plan_text(const RunPlan& plan, const RunConfig& config, double memory_gib) {
  std::string out = concat("run ", config.run.name, "\n\nparameters\n");
  for (const SizeEntry& entry : plan.parameters)
    out += row(entry.component, train::with_thousands(entry.amount));
  out += row("total", train::with_thousands(plan.parameter_count));

  out += "\nmemory of one rank (MiB)\n";
  for (const SizeEntry& entry : plan.static_memory) out += row(entry.component, mib(entry.amount));
  for (const SizeEntry& entry : plan.activations.saved)
    if (entry.amount > 0) out += row("saved: " + entry.component, mib(entry.amount));
  if (config.offload.enabled)
    out += row("moved to the host", (plan.offloaded_bytes > 0 ? "-" : "") + mib(plan.offloaded_bytes),
               concat(plan.moving_groups, " of ", plan.saved_groups, " groups"));
  out += row("workspace", mib(plan.activations.workspace_bytes), "estimate");
  out += row("total", mib(plan.total_bytes()),
             concat("micro-batch ", config.train.micro_batch, " x ", config.data.seq_len, " tokens"));

  if (config.offload.enabled) out += offload_text(plan, config.offload);

  out += "\nsteps\n";
  out += row("ranks", std::to_string(plan.ranks));
  out += row("micro-batches per rank", std::to_string(plan.micro_batches));
  out += row("tokens per step", train::with_thousands(plan.tokens_per_step));
  out += row("steps", train::with_thousands(config.train.steps));
  out += row("tokens in all", train::with_thousands(plan.total_tokens));

  if (memory_gib > 0.0) {
    const auto limit = static_cast<std::int64_t>(memory_gib * 1073741824.0);
    const std::int64_t largest = largest_micro_batch(config, plan.ranks, limit);
    out += concat("\n", plan.total_bytes() <= limit ? "fits" : "does not fit", " in ", memory_gib,
                  " GiB; largest train.micro_batch that fits: ",
                  largest > 0 ? std::to_string(largest) : std::string("none"), "\n");
  }
  return out;
}

}  // namespace deltaport
