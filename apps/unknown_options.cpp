// SPDX-License-Identifier: Apache-2.0
#include "unknown_options.hpp"

#include <algorithm>

#include "deltaport/config/suggest.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::app {
namespace {

std::string name_of(const std::string& word) {
  return word.substr(0, word.find('='));
}
std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(concat("--", name));
    for (const std::string& name : option->get_snames()) names.push_back(concat("-", name));
  }
  return names;
}

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  std::string guess;
  for (const std::string& candidate : candidates)
    if (candidate.starts_with(word) && (guess.empty() || candidate.size() < guess.size())) guess = candidate;
  if (guess.empty()) guess = config::nearest(word, candidates);
  return guess.empty() ? std::string() : concat("; did you mean '", guess, "'?");
}

std::string did_you_mean_option(const std::string& word, const CLI::App& app) {
  return name_of(word).size() > 3 ? did_you_mean(name_of(word), options_of(app)) : std::string();
}

std::vector<std::string> unknown_options(const std::vector<std::string>& words, const CLI::App& app) {
  std::vector<std::string> unknown;
  for (const std::string& word : words) {
    if (word == "--") break;
    if (word.size() < 2 || word[0] != '-') continue;
    bool known = false;
    for (const CLI::App* level = &app; level != nullptr && !known; level = level->get_parent())
      known = std::ranges::count(options_of(*level), name_of(word)) > 0;
    if (!known) unknown.push_back(name_of(word));
  }
  return unknown;
}

}  // namespace deltaport::app
