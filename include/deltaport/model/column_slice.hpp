// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/core/error.hpp"
#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// Columns [begin, begin + width) of a row-major matrix: the part of a fused projection that one operator
/// works on. Shares ownership of the matrix.
template <class T>
struct ColumnSlice {
  Tensor<T> matrix;  ///< [rows, stride]
  std::int64_t begin = 0;
  std::int64_t width = 0;

  /// Throws ShapeError unless `of` is a matrix that has these columns.
  ColumnSlice(const Tensor<T>& of, std::int64_t first, std::int64_t columns)
      : matrix(of), begin(first), width(columns) {
    DELTAPORT_VALIDATE(of.rank() == 2 && first >= 0 && columns >= 0 && first + columns <= of.extent(1),
                       ShapeError, "columns [", first, ", ", first + columns, ") of a tensor of shape ",
                       of.shape().str());
  }

  /// First element of row 0.
  T* data() const { return matrix.data() + begin; }
  std::int64_t rows() const { return matrix.extent(0); }
  /// Elements from one row to the next.
  std::int64_t stride() const { return matrix.extent(1); }
};

}  // namespace deltaport
