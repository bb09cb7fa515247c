// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/tile.cuh"

/// Products of a register operand (64 x 16 n rows of four warps) and a tile in shared memory, accumulated in
/// registers: by wgmma where the target has it, else by each warp on its own 16 rows with the same layout of
/// registers, so that callers do not know which.
namespace deltaport::recurrence::cuda {

/// How the tile is the B operand: its rows are n (by_rows: d = a tile^T) or k (by_columns: d = a tile).
enum class Tile { by_rows, by_columns };

#if defined(DELTAPORT_WGMMA)

/// Matrix descriptor: address, leading and stride offset in units of 16 bytes, 128-byte swizzle; of what lies `byte` bytes
/// behind the tile. The address of the tile (in a cluster it names the block too) is taken apart once, steps along it are
/// added as constants.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t tile, std::uint32_t leading_bytes,
                                                    std::uint32_t stride_bytes, std::uint32_t byte = 0) {
  const std::uint32_t low = ((tile & 0x3ffff) >> 4) + ((byte >> 4) + (leading_bytes >> 4 << 16)),
                      high = stride_bytes >> 4 | 1u << 30;
  return static_cast<std::uint64_t>(high) << 32 | low;
}

#define DELTAPORT_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DELTAPORT_D16(d, i) \
  DELTAPORT_D4(d, i), DELTAPORT_D4(d, i + 4), DELTAPORT_D4(d, i + 8), DELTAPORT_D4(d, i + 12)

#define DELTAPORT_WGMMA_64(type, transposed)                                                                 \
  asm volatile(                                                                                              \
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;"                                                               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                            \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
      "%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, " transposed "; }"                             \
      : DELTAPORT_D16(d, 0), DELTAPORT_D16(d, 16)                                                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define DELTAPORT_WGMMA_128(type, transposed)                                                                \
  asm volatile(                                                                                              \
      "{ .reg .pred p; setp.ne.b32 p, %69, 0;"                                                               \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                           \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
      "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, " transposed "; }" \
      : DELTAPORT_D16(d, 0), DELTAPORT_D16(d, 16), DELTAPORT_D16(d, 32), DELTAPORT_D16(d, 48)                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

template <class E, Tile orientation>
__device__ __forceinline__ void wgmma(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                      int accumulate) {
  if constexpr (__is_same(E, Bf16)) {
    if constexpr (orientation == Tile::by_rows) {
      DELTAPORT_WGMMA_64("bf16", "0");
    } else {
      DELTAPORT_WGMMA_64("bf16", "1");
    }
  } else {
    if constexpr (orientation == Tile::by_rows) {
      DELTAPORT_WGMMA_64("f16", "0");
    } else {
      DELTAPORT_WGMMA_64("f16", "1");
    }
  }
}
template <class E, Tile orientation>
__device__ __forceinline__ void wgmma(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                                      int accumulate) {
  static_assert(orientation == Tile::by_columns, "tiles have 64 rows");
  if constexpr (__is_same(E, Bf16)) {
    DELTAPORT_WGMMA_128("bf16", "1");
  } else {
    DELTAPORT_WGMMA_128("f16", "1");
  }
}
#define DELTAPORT_WGMMA_TILES_64(type, transposed_a, transposed_b)                                           \
  asm volatile(                                                                                              \
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;"                                                               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                            \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
      "%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, " transposed_a ", " transposed_b "; }"                       \
      : DELTAPORT_D16(d, 0), DELTAPORT_D16(d, 16)                                                            \
      : "l"(a), "l"(b), "r"(accumulate))
#define DELTAPORT_WGMMA_TILES_128(type, transposed_a)                                                        \
  asm volatile(                                                                                              \
      "{ .reg .pred p; setp.ne.b32 p, %66, 0;"                                                               \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                           \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
      "%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51," \
      "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, " transposed_a ", 1; }"          \
      : DELTAPORT_D16(d, 0), DELTAPORT_D16(d, 16), DELTAPORT_D16(d, 32), DELTAPORT_D16(d, 48)                \
      : "l"(a), "l"(b), "r"(accumulate))

template <class E, Tile left, Tile right>
__device__ __forceinline__ void wgmma_tiles(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                            int accumulate) {
  if constexpr (__is_same(E, Bf16)) {
    if constexpr (left == Tile::by_rows && right == Tile::by_rows) DELTAPORT_WGMMA_TILES_64("bf16", "0", "0");
    if constexpr (left == Tile::by_rows && right == Tile::by_columns)
      DELTAPORT_WGMMA_TILES_64("bf16", "0", "1");
    if constexpr (left == Tile::by_columns && right == Tile::by_rows)
      DELTAPORT_WGMMA_TILES_64("bf16", "1", "0");
    if constexpr (left == Tile::by_columns && right == Tile::by_columns)
      DELTAPORT_WGMMA_TILES_64("bf16", "1", "1");
  } else {
    if constexpr (left == Tile::by_rows && right == Tile::by_rows) DELTAPORT_WGMMA_TILES_64("f16", "0", "0");
    if constexpr (left == Tile::by_rows && right == Tile::by_columns)
      DELTAPORT_WGMMA_TILES_64("f16", "0", "1");
    if constexpr (left == Tile::by_columns && right == Tile::by_rows)
      DELTAPORT_WGMMA_TILES_64("f16", "1", "0");
    if constexpr (left == Tile::by_columns && right == Tile::by_columns)
      DELTAPORT_WGMMA_TILES_64("f16", "1", "1");
  }
}
template <class E, Tile left, Tile right>
__device__ __forceinline__ void wgmma_tiles(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                            int accumulate) {
  static_assert(right == Tile::by_columns, "tiles have 64 rows");
  if constexpr (__is_same(E, Bf16)) {
    if constexpr (left == Tile::by_rows) DELTAPORT_WGMMA_TILES_128("bf16", "0");
    if constexpr (left == Tile::by_columns) DELTAPORT_WGMMA_TILES_128("bf16", "1");
  } else {
    if constexpr (left == Tile::by_rows) DELTAPORT_WGMMA_TILES_128("f16", "0");
    if constexpr (left == Tile::by_columns) DELTAPORT_WGMMA_TILES_128("f16", "1");
  }
}
#undef DELTAPORT_WGMMA_TILES_64
#undef DELTAPORT_WGMMA_TILES_128
#undef DELTAPORT_WGMMA_64
#undef DELTAPORT_WGMMA_128
#undef DELTAPORT_D16
#undef DELTAPORT_D4

/// Keeps the compiler from moving reads and writes of d across a product in flight.
template <int n>
__device__ __forceinline__ void hold(float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `pending` of the latest groups are unfinished.
template <int pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Where step s of 16 along k lies in a tile of either orientation.
template <Tile orientation>
__device__ __forceinline__ std::uint64_t step_descriptor(std::uint32_t tile, int s) {
  return orientation == Tile::by_rows ? descriptor(tile, 16, 1024, (s / 4) * panel_bytes + (s % 4) * 32)
                                      : descriptor(tile, panel_bytes, 1024, s * 2048);
}
/// d (+)= a * B, `steps` steps of 16 along k; d is 64 x 2 n_registers. Asynchronous: between products_begin and
/// products_commit.
template <class E, Tile orientation, int steps, int n>
__device__ __forceinline__ void multiply(float (&d)[n], const std::uint32_t (&a)[steps][4],
                                         std::uint32_t tile, bool accumulate) {
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    wgmma<E, orientation>(d, a[s], step_descriptor<orientation>(tile, s), accumulate || s > 0);
  }
}

/// d (+)= A * B, both tiles. A by rows: its rows are m; by columns: its rows are k.
template <class E, Tile left, Tile right, int steps, int n>
__device__ __forceinline__ void multiply_tiles(float (&d)[n], std::uint32_t a, std::uint32_t b,
                                               bool accumulate) {
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    wgmma_tiles<E, left, right>(d, step_descriptor<left>(a, s), step_descriptor<right>(b, s),
                                accumulate || s > 0);
  }
}

#else

template <int n>
__device__ __forceinline__ void hold(float (&)[n]) {}
__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_commit() {}
template <int pending>
__device__ __forceinline__ void products_wait() {}

template <class E, Tile orientation, int steps, int n>
__device__ __forceinline__ void multiply(float (&d)[n], const std::uint32_t (&a)[steps][4],
                                         std::uint32_t tile, bool accumulate) {
  if (!accumulate) {
#pragma unroll
    for (int i = 0; i < n; ++i) d[i] = 0.0f;
  }
#pragma unroll
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
      std::uint32_t b[4];
      if constexpr (orientation == Tile::by_rows) {
        load_b(b, tile, 16 * j, 16 * s);
      } else {
        load_b_transposed(b, tile, 16 * s, 16 * j);
      }
      multiply_add<E>(reinterpret_cast<float(&)[4]>(d[8 * j]), a[s], b[0], b[1]);
      multiply_add<E>(reinterpret_cast<float(&)[4]>(d[8 * j + 4]), a[s], b[2], b[3]);
    }
  }
}

template <class E, Tile left, Tile right, int steps, int n>
__device__ __forceinline__ void multiply_tiles(float (&d)[n], std::uint32_t a, std::uint32_t b,
                                               bool accumulate) {
  const int warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int s = 0; s < steps; s += 4) {
    std::uint32_t operand[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (left == Tile::by_rows) {
        load_a(operand[i], a, 16 * warp, 16 * (s + i));
      } else {
        load_a_transposed(operand[i], a, 16 * (s + i), 16 * warp);
      }
    }
    const std::uint32_t from = right == Tile::by_rows ? b + (s / 4) * panel_bytes : b + s * 2048;
    multiply<E, right>(d, operand, from, accumulate || s > 0);
  }
}

#endif

/// Accumulator (64 x 2 n) as the register operand of a later product, rounded to E.
template <class E, int n>
__device__ __forceinline__ void as_operand(std::uint32_t (&a)[n / 8][4], const float (&d)[n]) {
#pragma unroll
  for (int s = 0; s < n / 8; ++s) {
    a[s][0] = pack<E>(d[8 * s], d[8 * s + 1]);
    a[s][1] = pack<E>(d[8 * s + 2], d[8 * s + 3]);
    a[s][2] = pack<E>(d[8 * s + 4], d[8 * s + 5]);
    a[s][3] = pack<E>(d[8 * s + 6], d[8 * s + 7]);
  }
}

}  // namespace deltaport::recurrence::cuda
