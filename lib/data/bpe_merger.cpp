// SPDX-License-Identifier: Apache-2.0
#include "data/bpe_merger.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

namespace deltaport {
namespace {

constexpr std::uint64_t empty_pair = ~std::uint64_t{0};
constexpr std::size_t short_symbols = 48;  // beyond, a heap beats looking at all neighbours

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::uint64_t mixed(std::uint64_t x) {
  x *= 0x9E3779B97F4A7C15ull;
  return x ^ x >> 29;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = text.size();
  while (text.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hash = mixed(hash ^ word);
    text.remove_prefix(8);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, text.data(), text.size());
  return mixed(mixed(hash ^ word));
}

}  // namespace

PieceCache::Line& PieceCache::line(std::string_view piece) {
  return lines_[hash_of(piece) & (line_count - 1)];
}

BpeMerger::BpeMerger(const BpeFile& file) : byte_id_(file.byte_id) {
  slots_.assign(std::bit_ceil(2 * file.merges.size() + 2), Slot{empty_pair, {no_rule, 0}});
  mask_ = slots_.size() - 1;
  for (std::size_t rank = 0; rank < file.merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(file.merges[rank].left, file.merges[rank].right);
    std::uint64_t at = mixed(pair) & mask_;
    while (slots_[at].pair != empty_pair && slots_[at].pair != pair) at = (at + 1) & mask_;
    // Of a pair that is listed twice the later rule holds, as a map that is filled in order has it.
    slots_[at] = {pair, {static_cast<std::int32_t>(rank), file.merges[rank].result}};
  }
  if (!file.ignore_merges) return;
  tokens_ = file.tokens;
  for (const AddedToken& token : file.added) tokens_[static_cast<std::size_t>(token.id)].clear();
  whole_.assign(std::bit_ceil(2 * tokens_.size() + 2), -1);
  whole_mask_ = whole_.size() - 1;
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    std::uint64_t at = hash_of(tokens_[id]) & whole_mask_;
    while (whole_[at] >= 0) at = (at + 1) & whole_mask_;
    whole_[at] = static_cast<std::int32_t>(id);
  }
}

BpeMerger::Rule BpeMerger::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::uint64_t at = mixed(pair) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return slots_[at].rule;
    if (slots_[at].pair == empty_pair) return {no_rule, 0};
  }
}

std::int32_t BpeMerger::whole_token(std::string_view piece) const {
  if (whole_.empty()) return -1;
  for (std::uint64_t at = hash_of(piece) & whole_mask_; whole_[at] >= 0; at = (at + 1) & whole_mask_)
    if (tokens_[static_cast<std::size_t>(whole_[at])] == piece) return whole_[at];
  return -1;
}

void BpeMerger::encode(std::string_view piece, PieceCache& cache, std::vector<std::int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_id_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  if (piece.size() > PieceCache::most_bytes) return merge(piece, ids);
  PieceCache::Line& line = cache.line(piece);
  if (line.bytes == piece.size() && std::memcmp(line.text, piece.data(), piece.size()) == 0) {
    ids.insert(ids.end(), line.id, line.id + line.ids);
    return;
  }
  const std::size_t before = ids.size();
  merge(piece, ids);
  const std::size_t count = ids.size() - before;
  if (count > PieceCache::most_ids) return;
  line.bytes = static_cast<std::uint8_t>(piece.size());
  line.ids = static_cast<std::uint8_t>(count);
  std::memcpy(line.text, piece.data(), piece.size());
  std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(before), count, line.id);
}

void BpeMerger::merge(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (const std::int32_t whole = whole_token(piece); whole >= 0) return ids.push_back(whole);
  std::vector<std::int32_t> symbols(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) symbols[i] = byte_id_[static_cast<unsigned char>(piece[i])];
  symbols.size() <= short_symbols ? merge_short(symbols) : merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

/// rules[i] is that of symbols i and i + 1.
void BpeMerger::merge_short(std::vector<std::int32_t>& symbols) const {
  Rule rules[short_symbols];
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) rules[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (rules[i].rank < rules[best].rank) best = i;
    if (rules[best].rank == no_rule) break;
    symbols[best] = rules[best].result;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      rules[i - 1] = rules[i];
    }
    --count;
    if (best > 0) rules[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) rules[best] = find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void BpeMerger::merge_long(std::vector<std::int32_t>& symbols) const {
  struct Candidate {
    std::int32_t rank, result;
    std::uint32_t at;
    std::int32_t left, right;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank
                                : at > other.at;  // the first rule on top, leftmost of equals
    }
  };
  const auto count = static_cast<std::uint32_t>(symbols.size());
  std::vector<std::uint32_t> next(count), previous(count);
  for (std::uint32_t i = 0; i < count; ++i) next[i] = i + 1, previous[i] = i - 1;
  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::uint32_t at) {
    if (next[at] >= count) return;
    const std::int32_t left = symbols[at], right = symbols[next[at]];
    if (const Rule rule = find(left, right); rule.rank != no_rule)
      queue.push({rule.rank, rule.result, at, left, right});
  };
  for (std::uint32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const std::uint32_t after = next[best.at];
    // Old when one of the two is gone or has become another.
    if (symbols[best.at] != best.left || after >= count || symbols[after] != best.right) continue;
    symbols[best.at] = best.result;
    symbols[after] = -1;
    next[best.at] = next[after];
    if (next[after] < count) previous[next[after]] = best.at;
    consider(best.at);
    if (previous[best.at] < count) consider(previous[best.at]);
  }
  std::erase(symbols, -1);
}

}  // namespace deltaport
