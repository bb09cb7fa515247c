// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/ptx.cuh"

/// Tiles of 64 rows in shared memory, kept as panels of 64 columns (128 bytes a row, 8 KiB a panel). The 16-byte
/// unit u of row r lies at unit u ^ (r % 8): the 128-byte swizzle that wgmma reads, and free of bank conflicts
/// for ldmatrix by rows and by columns. The base is aligned to 1,024 bytes.
namespace deltaport::recurrence::cuda {

constexpr int chunk_rows = 64;
constexpr int panel_bytes = chunk_rows * 128;

/// Byte offset of the 16-byte unit that holds (row, column), column a multiple of 8. Unsigned, so that divisions are
/// shifts.
__device__ __forceinline__ std::uint32_t unit_offset(std::uint32_t row, std::uint32_t column) {
  return (column / 64) * panel_bytes + row * 128 + (((column / 8) % 8) ^ (row % 8)) * 16;
}
/// Byte offset of one element.
__device__ __forceinline__ std::uint32_t element_offset(std::uint32_t row, std::uint32_t column) {
  return unit_offset(row, column) + (column % 8) * 2;
}

/// What a lane adds to a tile's address to name a row of four 8 x 8 matrices, at column 0; a multiple of 16 columns is
/// then an exclusive or, since it changes only bits that the swizzle does. In rows_first matrices 0 and 1 lie below each
/// other, in columns_first beside each other.
__device__ __forceinline__ std::uint32_t rows_first() {
  const std::uint32_t lane = threadIdx.x % 32;
  return (lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
}
__device__ __forceinline__ std::uint32_t columns_first() {
  const std::uint32_t lane = threadIdx.x % 32;
  return (lane % 8 + 8 * (lane / 16)) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
}
/// Rows from `row`, columns from `column`; both multiples of 16.
__device__ __forceinline__ std::uint32_t matrices_at(std::uint32_t tile, std::uint32_t lane_offset,
                                                     std::uint32_t row, std::uint32_t column) {
  return tile + (column / 64) * panel_bytes + row * 128 + (lane_offset ^ (column % 64) * 2);
}

/// A operand (16 rows from `row`, 16 columns from `column`) of a tile stored by rows.
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], std::uint32_t tile, int row, int column) {
  load_matrices(a, matrices_at(tile, rows_first(), row, column));
}
/// A operand of the transposed tile: element (m, k) is tile (row + k, column + m).
__device__ __forceinline__ void load_a_transposed(std::uint32_t (&a)[4], std::uint32_t tile, int row,
                                                  int column) {
  load_matrices_transposed(a, matrices_at(tile, columns_first(), row, column));
}
/// Two B operands (16 x 8 each, n from `row` and row + 8) of a tile whose rows are n and columns k:
/// b[0], b[1] for the first, b[2], b[3] for the second.
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], std::uint32_t tile, int row, int column) {
  load_matrices(b, matrices_at(tile, columns_first(), row, column));
}
/// The same of a tile whose rows are k and columns n: n from `column` and column + 8, k from `row`.
__device__ __forceinline__ void load_b_transposed(std::uint32_t (&b)[4], std::uint32_t tile, int row,
                                                  int column) {
  load_matrices_transposed(b, matrices_at(tile, rows_first(), row, column));
}

/// Writes a rounded 16 x 16 fragment (as load_a gives it) to rows from `row` and columns from `column`.
__device__ __forceinline__ void store_a(std::uint32_t tile, int row, int column,
                                        const std::uint32_t (&a)[4]) {
  store_matrices(matrices_at(tile, rows_first(), row, column), a);
}
/// Writes it transposed: its element (m, k) goes to row + k, column + m.
__device__ __forceinline__ void store_a_transposed(std::uint32_t tile, int row, int column,
                                                   const std::uint32_t (&a)[4]) {
  store_matrices_transposed(matrices_at(tile, columns_first(), row, column), a);
}

/// Starts copies of rows [0, rows) and columns [0, columns) of a row-major matrix into a tile of
/// `padded_columns` columns; the rest becomes zero. `threads` threads take part, this is number `thread`.
template <int padded_columns, int threads>
__device__ __forceinline__ void copy_tile_async(std::uint32_t tile, const void* source,
                                                std::int64_t row_bytes, int rows, int columns, int thread) {
  constexpr int units = padded_columns / 8;
#if defined(DELTAPORT_BULK_COPY)
#pragma unroll 1  // only for short chunks there: not worth the registers
#else
#pragma unroll
#endif
  for (int i = 0; i < chunk_rows * units / threads; ++i) {
    const int index = i * threads + thread;
    const int row = index / units, column = (index % units) * 8;
    const bool inside = row < rows && column < columns;
    const char* from = static_cast<const char*>(source) + (inside ? row * row_bytes + column * 2 : 0);
    copy16_async(tile + unit_offset(row, column), from, inside);
  }
}
/// Starts copies of `bytes` bytes of a tile image, as store_image wrote it.
template <int bytes, int threads>
__device__ __forceinline__ void copy_image_async(std::uint32_t tile, const void* source, int thread) {
#pragma unroll
  for (int i = 0; i < bytes / 16 / threads; ++i) {
    const int offset = (i * threads + thread) * 16;
    copy16_async(tile + offset, static_cast<const char*>(source) + offset, true);
  }
}
template <int bytes, int threads>
__device__ __forceinline__ void store_image(void* destination, std::uint32_t tile, int thread) {
#pragma unroll
  for (int i = 0; i < bytes / 16 / threads; ++i) {
    const int offset = (i * threads + thread) * 16;
    *reinterpret_cast<uint4*>(static_cast<char*>(destination) + offset) = load_shared16(tile + offset);
  }
}

}  // namespace deltaport::recurrence::cuda
