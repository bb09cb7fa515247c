// SPDX-License-Identifier: Apache-2.0
#include "deltaport/config/schema.hpp"

#include <cstdio>

#include "command.hpp"

namespace deltaport::app {

void add_schema(CLI::App& parent, const Invocation&, Action& action) {
  CLI::App* command = parent.add_subcommand("schema", "print the JSON schema of the YAML files, for editors");
  command->callback([&action] {
    action = [] {
      std::fputs(json_schema().c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace deltaport::app
