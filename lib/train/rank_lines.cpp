// SPDX-License-Identifier: Apache-2.0
#include "train/rank_lines.hpp"

#include <algorithm>
#include <utility>

namespace deltaport::train {
namespace {

// Lines end with a zero byte: texts of errors may hold line ends.
constexpr char end_of_line = '\0';
constexpr std::size_t most_named = 3;

std::string speakers(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return concat("rank ", ranks[0], ": ");
  std::string text = "ranks ";
  for (std::size_t i = 0; i < std::min(most_named, ranks.size()); ++i)
    text += concat(i ? ", " : "", ranks[i]);
  return text + (ranks.size() > most_named ? concat(" and ", ranks.size() - most_named, " more: ") : ": ");
}

}  // namespace

std::vector<std::string> lines_of_ranks(const Communicator& communicator,
                                        const std::vector<std::string>& mine) {
  std::string sent;
  for (const std::string& line : mine) (sent += line) += end_of_line;
  std::vector<std::pair<std::string, std::vector<int>>> said;
  const std::vector<std::string> all = communicator.gather(sent);
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const std::string& text = all[static_cast<std::size_t>(rank)];
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find(end_of_line, begin);
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      auto known = std::ranges::find(said, line, [](const auto& entry) { return entry.first; });
      if (known == said.end()) known = said.insert(said.end(), {line, {}});
      if (known->second.empty() || known->second.back() != rank) known->second.push_back(rank);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [line, ranks] : said)
    lines.push_back(ranks.size() == all.size() ? line : speakers(ranks) + line);
  return lines;
}

}  // namespace deltaport::train
