// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace deltaport::app {

/// Help whose descriptions are broken between words, so that terminals of 100 columns show them as they are.
class HelpFormat : public CLI::Formatter {
 public:
  static constexpr std::size_t width = 100;  ///< columns

  std::string make_description(const CLI::App* app) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_footer(const CLI::App* app) const override;
};

/// `text` with line breaks in place of spaces where a line is longer than `columns`; longer words stay whole, and so do
/// shorter lines; what a line is indented by, its continuations are too.
std::string wrapped(const std::string& text, std::size_t columns);

}  // namespace deltaport::app
