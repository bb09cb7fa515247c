// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/core/dtype.hpp"
#include "deltaport/core/runtime.hpp"

namespace deltaport {

/// Tokens whose contributions to a parameter gradient one task sums before the columns are added up. Fixed,
/// so that the order of the sum, and with it every bit, is the same for any number of threads.
inline constexpr std::int64_t gradient_block_rows = 16;
inline std::int64_t gradient_blocks(std::int64_t rows) {
  return (rows + gradient_block_rows - 1) / gradient_block_rows;
}

/// Enqueues target[c] += sum over r of partial[r, c], in an order that depends on the sizes alone; partial is dense
/// [rows, columns]. A is float or double, the type of gradients.
template <class A>
void add_column_sums(Runtime& runtime, std::int64_t rows, std::int64_t columns, const A* partial, A* target);

}  // namespace deltaport
