// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "deltaport/core/error.hpp"

namespace deltaport {

/// Extents of a dense row-major tensor, slowest first; up to six dimensions, each >= 0. Rank 0 is a scalar.
class Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    for (std::int64_t extent : extents) push_back(extent);
  }

  /// Appends one extent. Throws ShapeError beyond six dimensions or for a negative extent.
  void push_back(std::int64_t extent) {
    DELTAPORT_VALIDATE(rank_ < max_rank, ShapeError, "a tensor has at most ", max_rank, " dimensions");
    DELTAPORT_VALIDATE(extent >= 0, ShapeError, "negative extent ", extent);
    extents_[static_cast<std::size_t>(rank_++)] = extent;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return extents_[static_cast<std::size_t>(i)]; }

  /// Number of elements.
  std::int64_t size() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= (*this)[i];
    return product;
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

  /// "[2, 3, 4]"
  std::string str() const {
    std::string out = "[";
    for (int i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string((*this)[i]);
    return out + "]";
  }

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

}  // namespace deltaport
