// SPDX-License-Identifier: Apache-2.0
#include "help_format.hpp"

#include <cctype>
#include <sstream>

namespace deltaport::app {

std::string wrapped(const std::string& text, std::size_t columns) {
  std::string out;
  std::size_t line = 0;  // where the last line of out begins
  bool is_first = true;
  std::istringstream lines(text);
  for (std::string paragraph; std::getline(lines, paragraph);) {
    // What is too long goes on in the next line, unless that is empty or indented: a rest would stand alone.
    while (paragraph.size() > columns && lines.good() && std::isgraph(lines.peek()) != 0) {
      std::string next;
      std::getline(lines, next);
      paragraph += ' ' + next;
    }
    if (!is_first) out += '\n';
    is_first = false;
    line = out.size();
    if (paragraph.size() <= columns) {
      out += paragraph;
      continue;
    }
    const std::string indent(paragraph.find_first_not_of(' '), ' ');
    out += indent;
    std::istringstream words(paragraph);
    bool begins = true;
    for (std::string word; words >> word; begins = false) {
      if (!begins && out.size() - line + 1 + word.size() > columns) {
        out += '\n';
        line = out.size();
        out += indent;
      } else if (!begins) {
        out += ' ';
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

std::string HelpFormat::make_footer(const CLI::App* app) const {
  return wrapped(CLI::Formatter::make_footer(app), width) + "\n";
}

}  // namespace deltaport::app
