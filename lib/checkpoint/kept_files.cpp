// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/kept_files.hpp"

#include "checkpoint/input_file.hpp"

namespace deltaport::checkpoint {

namespace {

constexpr const char* kept_names[] = {"config.json",
                                      "generation_config.json",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "chat_template.jinja",
                                      "chat_template.json"};

}  // namespace

std::map<std::string, std::string> read_kept_files(const files::Path& folder) {
  std::map<std::string, std::string> texts;
  std::error_code ignored;
  for (const char* name : kept_names) {
    if (!std::filesystem::is_regular_file(folder / name, ignored)) continue;
    const files::InputFile file(folder / name, FileOrigin::user);
    std::string text(static_cast<std::size_t>(file.bytes()), '\0');
    file.read(0, file.bytes(), text.data());
    texts[name] = std::move(text);
  }
  return texts;
}

std::map<std::string, std::string> kept_among(const std::map<std::string, std::string>& texts) {
  std::map<std::string, std::string> kept;
  for (const char* name : kept_names)
    if (const auto found = texts.find(name); found != texts.end()) kept.insert(*found);
  return kept;
}

}  // namespace deltaport::checkpoint
