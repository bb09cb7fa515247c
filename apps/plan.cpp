// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "config_options.hpp"
#include "deltaport/train/run_plan.hpp"

namespace deltaport::app {

void add_plan(CLI::App& parent, const Invocation&, Action& action) {
  auto* command = parent.add_subcommand("plan",
                                        "tell parameters, memory, steps and tokens of a run without starting "
                                        "it: FILE... [--section.key=value ...]");
  auto ranks = std::make_shared<int>(1);
  auto memory = std::make_shared<double>(0.0);
  command->add_option("--ranks", *ranks, "Ranks that will train together")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--memory-gib", *memory, "Memory of one rank in GiB: tells whether the run fits")
      ->check(number_in("a number from 0.001 to 1e9", [](double x) { return x >= 0.001 && x <= 1e9; }));
  accept_config(*command);
  command->callback([=, &action] {
    action = [=]() -> int {
      const LoadRequest request = request_of(*command, DataSection::optional);
      DELTAPORT_VALIDATE(!request.files.empty(), ConfigError, "plan needs a YAML file");
      const LoadedConfig loaded = load_with_warnings(request);
      const RunPlan plan = make_plan(loaded.config, *ranks);
      std::fputs(plan_text(plan, loaded.config, *memory).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace deltaport::app
