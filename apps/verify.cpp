// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/verify.hpp"

#include <cstdio>
#include <memory>

#include "config_options.hpp"
#include "deltaport/comm/session.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/config/schema.hpp"

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

/// The scopes that can move between captured mixers; empty where there are none.
std::string scopes_of_mixers(const RunConfig& config) {
  std::string scopes;
  for (const OffloadScope scope : config.offload.scopes)
    if (scope != OffloadScope::mlp) scopes += (scopes.empty() ? "" : ",") + std::string(name_of(scope));
  return scopes;
}

std::vector<VerifyArm> arms_of(const LoadRequest& request, const std::vector<std::string>& also) {
  std::vector<VerifyArm> arms;
  const std::string mixers = scopes_of_mixers(with(request, eager));
  for (const ArmRow& row : rows) {
    std::vector<std::string> overrides = row.overrides;
    if (row.must_move && overrides[0] == "--graph.scope=attention") {
      if (mixers.empty()) continue;  // nothing but mlp, which that scope cannot move
      overrides.push_back("--offload.scopes=[" + mixers + "]");
    }
    arms.push_back({row.name, with(request, overrides), row.must_capture, row.must_move});
  }
  for (const std::string& key : also) {
    std::vector<std::string> overrides = eager;
    overrides.push_back("--" + key);
    arms.push_back({key, with(request, overrides)});
  }
  return arms;
}

int verify_run(Session& session, const LoadRequest& request, const Options& options) {
  const std::vector<VerifyArm> arms = arms_of(request, options.also);
  verify(session.world(), with(request, eager), arms, options.steps, [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  });
  if (session.world().is_root())
    std::printf("all %zu arms give the bits of the eager run over %lld steps\n", arms.size(),
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
  command->add_option(
      "--also", options->also,
      "Another arm with this key changed, e.g. --also recurrence.implementation=reference; may be "
      "given several times");
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
