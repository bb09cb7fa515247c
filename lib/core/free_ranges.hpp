// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace deltaport {

/// The free stretches of some slabs, for best fit. Stretches that touch are merged, but never across slabs, so
/// that each slab can be given back alone. The same calls give the same addresses. Not thread-safe.
class FreeRanges {
 public:
  /// A slab, all of it free.
  void add_slab(std::byte* begin, std::size_t bytes) {
    slab_starts_.insert(begin);
    insert(begin, bytes);
  }
  /// Forgets a slab, if all of it is free; false otherwise.
  bool remove_slab(std::byte* begin, std::size_t bytes) {
    if (!is_free(begin, bytes)) return false;
    erase(begin, bytes);
    slab_starts_.erase(begin);
    return true;
  }
  /// Whether exactly this stretch is free.
  bool is_free(std::byte* begin, std::size_t bytes) const {
    const auto whole = by_address_.find(begin);
    return whole != by_address_.end() && whole->second == bytes;
  }

  /// The front of the smallest stretch that holds `bytes` (of equal ones the lowest); nullptr when none does.
  std::byte* take(std::size_t bytes) {
    const auto best = by_size_.lower_bound({bytes, nullptr});
    if (best == by_size_.end()) return nullptr;
    const auto [size, begin] = *best;
    erase(begin, size);
    if (size > bytes) insert(begin + bytes, size - bytes);
    return begin;
  }

  /// Takes back what take() gave.
  void give(std::byte* begin, std::size_t bytes) {
    const auto next = by_address_.lower_bound(begin);
    if (next != by_address_.begin() && !slab_starts_.contains(begin)) {
      const auto [address, size] = *std::prev(next);
      if (address + size == begin) {
        erase(address, size);
        begin = address;
        bytes += size;
      }
    }
    if (next != by_address_.end() && next->first == begin + bytes && !slab_starts_.contains(next->first)) {
      const auto [address, size] = *next;
      erase(address, size);
      bytes += size;
    }
    insert(begin, bytes);
  }

  std::size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void insert(std::byte* begin, std::size_t bytes) {
    by_address_.emplace(begin, bytes);
    by_size_.emplace(bytes, begin);
  }
  void erase(std::byte* begin, std::size_t bytes) {
    by_address_.erase(begin);
    by_size_.erase({bytes, begin});
  }

  std::set<std::byte*> slab_starts_;
  std::map<std::byte*, std::size_t> by_address_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
};

}  // namespace deltaport
