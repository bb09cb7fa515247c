// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "config_options.hpp"

namespace deltaport::app {

void add_print_config(CLI::App& parent, const Invocation&, Action& action) {
  CLI::App* command = parent.add_subcommand(
      "print-config",
      "show the resolved configuration and where each value comes from: FILE... [--section.key=value ...]");
  accept_config(*command);
  const auto keys = std::make_shared<PrintKeys>(PrintKeys::all);
  command->add_flag_callback(
      "--diff", [keys] { *keys = PrintKeys::changed; }, "only keys that differ from the built-in defaults");
  command->callback([command, keys, &action] {
    action = [command, keys] {
      const LoadedConfig loaded = load_with_warnings(request_of(*command, DataSection::optional));
      std::fputs(loaded.print(*keys).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace deltaport::app
