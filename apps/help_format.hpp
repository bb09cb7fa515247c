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
};

/// `text` with line breaks in place of spaces where a line would be longer than `columns`; longer words stay whole.
std::string wrapped(const std::string& text, std::size_t columns);

}  // namespace deltaport::app
