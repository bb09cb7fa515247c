// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/verify.hpp"

#include <cstdio>
#include <memory>

#include "config_options.hpp"
#include "deltaport/comm/session.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/model/model_size.hpp"
#include "deltaport/train/training_run.hpp"

namespace deltaport::app {
namespace {

struct Options {
  std::int64_t steps = 6;
  std::vector<std::string> also;
};

/// How one arm differs from the run as it was described.
struct ArmRow {
  const char* name;
  std::vector<std::string> overrides;
  bool must_capture, must_move;
};

const std::vector<std::string> eager = {"--graph.scope=none", "--offload.enabled=false"};

// The first is the same run once more: two runs must agree before anything else can.
const ArmRow rows[] = {
    {"eager, once more", eager, false, false},
    {"offload", {"--graph.scope=none", "--offload.enabled=true"}, false, true},
    {"offload between layers",
     {"--graph.scope=none", "--offload.enabled=true", "--offload.delayed=true"},
     false,
     true},
    {"graph attention", {"--graph.scope=attention", "--offload.enabled=false"}, true, false},
    {"graph layer", {"--graph.scope=layer", "--offload.enabled=false"}, true, false},
    {"graph step", {"--graph.scope=step", "--offload.enabled=false"}, true, false},
    {"graph attention+offload", {"--graph.scope=attention", "--offload.enabled=true"}, true, true},
    {"graph layer+offload", {"--graph.scope=layer", "--offload.enabled=true"}, true, true},
    {"graph step+offload", {"--graph.scope=step", "--offload.enabled=true"}, true, true},
};

RunConfig with(LoadRequest request, const std::vector<std::string>& overrides) {
  request.overrides.insert(request.overrides.end(), overrides.begin(), overrides.end());
  return load_config(request).config;
}

/// What the arms are, and what is left out of them.
struct Arms {
  RunConfig reference;
  std::vector<VerifyArm> arms;
  std::vector<std::string> notes;  // lines

  /// Arms of which the same is to be said share a line.
  void note(const std::string& arm, const std::string& rest) {
    for (std::string& line : notes)
      if (line.ends_with(rest)) {
        line.insert(line.size() - rest.size(), concat(", ", arm));
        return;
      }
    notes.push_back(arm + rest);
  }
};

/// Whether this build's recurrences leave anything but their inputs in the group gdn_core_attn.
bool keeps_preparation(const RunConfig& config) {
  if (config.recompute.gdn_preparation) return false;
  std::int64_t elements = 0;
  for (const SavedGroupSize& group :
       saved_groups(config.model, config.data.seq_len, model_dtype(config), lm_options(config)))
    for (const SavedTensorSize& tensor : group.tensors)
      if (group.scope == name_of(OffloadScope::gdn_core_attn)) elements += tensor.elements;
  return elements > 0;
}

/// Why what `scope` names cannot move in this run, or an empty text.
std::string immovable(OffloadScope scope, const RunConfig& config, bool mixers_captured) {
  if (scope == OffloadScope::mlp)
    return mixers_captured ? "graph.scope attention leaves it out of the captured graphs" : "";
  if (scope == OffloadScope::gdn_core_attn && config.recompute.gdn_core_inputs == CoreInputsAgain::all &&
      !keeps_preparation(config))
    return "recompute.gdn_core_inputs = all leaves nothing of it";
  const bool wants_attention = scope == OffloadScope::attn_core;
  for (std::int64_t layer = 0; layer < config.model.num_hidden_layers; ++layer)
    if ((config.model.layer_type(layer) == LayerType::attention) == wants_attention) return "";
  return concat("the model has no ", wants_attention ? "attention" : "gdn or gdn2", " layer");
}

/// Adds what the arm moves to its overrides. False, with a note, where that would be nothing.
bool choose_scopes(const ArmRow& row, std::vector<std::string>& overrides, Arms& arms) {
  const bool mixers_captured = row.overrides[0] == "--graph.scope=attention";
  std::string scopes, reasons;
  for (const OffloadScope scope : arms.reference.offload.scopes) {
    const std::string reason = immovable(scope, arms.reference, mixers_captured);
    if (reason.empty())
      scopes += concat(scopes.empty() ? "" : ",", name_of(scope));
    else
      reasons += concat(reasons.empty() ? "" : "; ", name_of(scope), ": ", reason);
  }
  if (!reasons.empty())
    arms.note(row.name, scopes.empty() ? concat(": left out, nothing would move (", reasons, ")")
                                       : concat(": of offload.scopes, ", scopes, " only (", reasons, ")"));
  overrides.push_back("--offload.scopes=[" + scopes + "]");
  return !scopes.empty();
}

Arms arms_of(LoadRequest request, const Options& options) {
  Arms all;
  all.reference = with(request, eager);
  // Captures need steps after their warm-up, and the learning rate is that of a run with as many.
  if (all.reference.train.steps < options.steps) {
    all.notes.push_back(concat("train.steps = ", options.steps, " in every arm, for --steps ", options.steps,
                               "; the run's own ", all.reference.train.steps, " would be too few"));
    request.overrides.push_back(concat("--train.steps=", options.steps));
    all.reference = with(request, eager);
  }
  for (const ArmRow& row : rows) {
    std::vector<std::string> overrides = row.overrides;
    if (row.must_move && !choose_scopes(row, overrides, all)) continue;
    all.arms.push_back({row.name, with(request, overrides), row.must_capture, row.must_move});
  }
  for (const std::string& key : options.also) {
    std::vector<std::string> overrides = eager;
    overrides.push_back("--" + key);
    all.arms.push_back({key, with(request, overrides)});
  }
  return all;
}

int verify_run(Session& session, const LoadRequest& request, const Options& options) {
  const Arms all = arms_of(request, options);
  if (session.world().is_root())
    for (const std::string& note : all.notes) std::printf("%s\n", note.c_str());
  verify(session.world(), all.reference, all.arms, options.steps, [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  });
  if (session.world().is_root())
    std::printf("all %zu arms give the bits of the eager run over %lld steps\n", all.arms.size(),
                static_cast<long long>(options.steps));
  return 0;
}

}  // namespace

void add_verify(CLI::App& parent, const Invocation& invocation, Action& action) {
  auto* command = parent.add_subcommand(
      "verify",
      "show that offload and captured graphs change no bit of a run: FILE... [--section.key=value ...]");
  auto options = std::make_shared<Options>();
  command->add_option("--steps", options->steps, "Optimizer steps of each arm, more than graph.warmup_steps")
      ->check(at_least<std::int64_t>(1))
      ->capture_default_str();
  command
      ->add_option("--also", options->also,
                   "Another arm: the eager run (graph.scope none, offload off) with this key changed, e.g. "
                   "--also recurrence.implementation=reference; once for each arm")
      ->allow_extra_args(false);
  accept_config(*command);
  command->footer(
      "Trains the first steps of the run in several ways, each beside an eager run from the same start, and "
      "compares\n"
      "after every step: the inputs' hash, loss and norm, and bit for bit all gradients, weights and "
      "optimizer states.\n"
      "Ends with exit code 1 at the first difference, naming arm, step, tensor, element and both values. "
      "Holds two\n"
      "models in memory and writes no files.\n\n" +
      command->get_footer());
  command->callback([=, &action] {
    action = [=]() -> int {
      const LoadRequest request = request_of(*command, DataSection::required);
      DELTAPORT_VALIDATE(!request.files.empty(), ConfigError,
                         "verify needs a YAML file, e.g. deltaport verify run.yaml");
      return run_session(*invocation.argc, *invocation.argv, {.summary = SummaryLine::yes},
                         [&](Session& session) { return verify_run(session, request, *options); });
    };
  });
}

}  // namespace deltaport::app
