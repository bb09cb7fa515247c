// SPDX-License-Identifier: Apache-2.0
#include "help_format.hpp"

#include <sstream>

namespace deltaport::app {

std::string wrapped(const std::string& text, std::size_t columns) {
  std::string out;
  std::size_t line = 0;  // where the last line of out begins
  std::istringstream lines(text);
  for (std::string paragraph; std::getline(lines, paragraph);) {
    if (!out.empty()) out += '\n';
    line = out.size();
    std::istringstream words(paragraph);
    for (std::string word; words >> word;) {
      if (out.size() > line) {
        if (out.size() - line + 1 + word.size() > columns) {
          out += '\n';
          line = out.size();
        } else {
          out += ' ';
        }
      }
      out += word;
    }
  }
  return out;
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  return wrapped(CLI::Formatter::make_description(app), width) + "\n";
}
std::string HelpFormat::make_option_desc(const CLI::Option* option) const {
  return wrapped(CLI::Formatter::make_option_desc(option), width - column_width_);
}
std::string HelpFormat::make_subcommand(const CLI::App* command) const {
  std::ostringstream out;
  CLI::detail::format_help(out, command->get_display_name(true),
                           wrapped(command->get_description(), width - column_width_), column_width_);
  return out.str();
}

}  // namespace deltaport::app
