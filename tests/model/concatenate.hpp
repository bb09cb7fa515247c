// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "deltaport/core/runtime.hpp"

namespace deltaport::testing {

/// The elements of all parts, one after the other, as one new vector.
template <class T>
Tensor<T> concatenate(Runtime& runtime, const std::vector<Tensor<T>>& parts) {
  std::int64_t total = 0;
  for (const Tensor<T>& part : parts) total += part.size();
  const Tensor<T> all = runtime.allocate<T>("concatenated", Shape{total});
  std::int64_t begin = 0;
  for (const Tensor<T>& part : parts) {
    copy(runtime.compute(), all.rows(begin, begin + part.size()), part);
    begin += part.size();
  }
  return all;
}

/// The part of a concatenation that begins at `begin`, advancing it.
template <class T>
Tensor<T> next_part(const Tensor<T>& all, std::int64_t& begin, const Shape& shape) {
  const Tensor<T> part = all.rows(begin, begin + shape.size()).reshape(shape);
  begin += shape.size();
  return part;
}

}  // namespace deltaport::testing
