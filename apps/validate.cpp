// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "config_options.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::app {

void add_validate(CLI::App& parent, const Invocation&, Action& action) {
  CLI::App* command =
      parent.add_subcommand("validate", "check a configuration: FILE... [--section.key=value ...]");
  accept_config(*command);
  command->footer(command->get_footer() + "\n\nKeys:\n" + key_reference());
  command->callback([command, &action] {
    action = [command] {
      const LoadRequest request = request_of(*command, DataSection::required);
      DELTAPORT_VALIDATE(!request.files.empty(), ConfigError, "validate needs at least one YAML file");
      load_with_warnings(request);
      std::string names;
      for (const std::string& file : request.files) names += (names.empty() ? "" : " + ") + file;
      std::printf("%s: valid\n", names.c_str());
      return 0;
    };
  });
}

}  // namespace deltaport::app
