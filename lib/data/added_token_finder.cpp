// SPDX-License-Identifier: Apache-2.0
#include "data/added_token_finder.hpp"

#include <algorithm>
#include <cstring>

namespace deltaport {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  const auto first = [](const AddedToken& token) { return static_cast<unsigned char>(token.text[0]); };
  std::sort(tokens_.begin(), tokens_.end(), [&](const AddedToken& a, const AddedToken& b) {
    return first(a) != first(b) ? first(a) < first(b) : a.text.size() > b.text.size();
  });
  for (const AddedToken& token : tokens_) {
    ++begin_of_[first(token) + std::size_t{1}];
    longest_ = std::max(longest_, token.text.size());
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (begin_of_[byte + 1] > 0) first_bytes_.push_back(static_cast<unsigned char>(byte));
    begin_of_[byte + 1] += begin_of_[byte];
  }
}

bool AddedTokenFinder::find(std::string_view text, std::size_t from, Found& found) const {
  if (tokens_.empty()) return false;
  while (from < text.size()) {
    if (first_bytes_.size() == 1) {  // the usual case: all begin with '<'
      const void* at = std::memchr(text.data() + from, first_bytes_[0], text.size() - from);
      if (at == nullptr) return false;
      from = static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
    }
    const auto byte = static_cast<unsigned char>(text[from]);
    for (std::uint32_t i = begin_of_[byte]; i < begin_of_[byte + std::size_t{1}]; ++i)
      if (text.substr(from, tokens_[i].text.size()) == tokens_[i].text) {
        found = {from, from + tokens_[i].text.size(), tokens_[i].id};
        return true;
      }
    ++from;
  }
  return false;
}

}  // namespace deltaport
