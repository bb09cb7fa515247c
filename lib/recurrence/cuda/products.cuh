// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/wgmma.cuh"

/// Products by one group of four warps that are waited for at once, as the gradient kernels need them. `d` is the group's
/// accumulator; tiles are addresses in shared memory.
namespace deltaport::recurrence::cuda {

#if defined(DELTAPORT_WGMMA)

/// Descriptor of a tile's step 0, in words: a later step adds a constant to the first.
template <Tile orientation>
struct Steps {
  std::uint32_t low, high;

  __device__ __forceinline__ explicit Steps(std::uint32_t tile) {
    const std::uint64_t whole = step_descriptor<orientation>(tile, 0);
    low = static_cast<std::uint32_t>(whole), high = static_cast<std::uint32_t>(whole >> 32);
  }
  __device__ __forceinline__ std::uint64_t at(int s) const {
    const int bytes = orientation == Tile::by_rows ? (s / 4) * panel_bytes + (s % 4) * 32 : s * 2048;
    return static_cast<std::uint64_t>(high) << 32 | (low + bytes / 16);
  }
};
/// multiply() and multiply_tiles() in fewer instructions.
template <class E, Tile orientation, int steps, int n>
__device__ __forceinline__ void issue(float (&d)[n], const std::uint32_t (&a)[steps][4], std::uint32_t tile,
                                      bool accumulate = true) {
  const Steps<orientation> b(tile);
#pragma unroll
  for (int s = 0; s < steps; ++s) wgmma<E, orientation>(d, a[s], b.at(s), accumulate || s > 0);
}
template <class E, Tile left, Tile right, int steps, int n>
__device__ __forceinline__ void issue_tiles(float (&d)[n], std::uint32_t a, std::uint32_t b,
                                            bool accumulate = true) {
  const Steps<left> rows(a);
  const Steps<right> columns(b);
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    wgmma_tiles<E, left, right>(d, rows.at(s), columns.at(s), accumulate || s > 0);
  }
}

#else

template <class E, Tile orientation, int steps, int n>
__device__ __forceinline__ void issue(float (&d)[n], const std::uint32_t (&a)[steps][4], std::uint32_t tile,
                                      bool accumulate = true) {
  multiply<E, orientation>(d, a, tile, accumulate);
}
template <class E, Tile left, Tile right, int steps, int n>
__device__ __forceinline__ void issue_tiles(float (&d)[n], std::uint32_t a, std::uint32_t b,
                                            bool accumulate = true) {
  multiply_tiles<E, left, right, steps>(d, a, b, accumulate);
}

#endif

/// Adds several products: start() starts them, one after the other, with the same accumulator.
template <int n, class Start>
__device__ __forceinline__ void add_all(float (&d)[n], Start start) {
  hold(d);
  products_begin();
  start();
  products_commit();
  products_wait<0>();
  hold(d);
}
/// The same, with work on other registers meanwhile.
template <int n, class Start, class Meanwhile>
__device__ __forceinline__ void add_all(float (&d)[n], Start start, Meanwhile meanwhile) {
  hold(d);
  products_begin();
  start();
  products_commit();
  meanwhile();
  products_wait<0>();
  hold(d);
}
/// With a register operand.
template <class E, Tile orientation, int s, int n>
__device__ __forceinline__ void add(float (&d)[n], const std::uint32_t (&operand)[s][4], std::uint32_t tile) {
  add_all(d, [&] { issue<E, orientation>(d, operand, tile); });
}
template <class E, Tile left, Tile right, int s = 4, int n>
__device__ __forceinline__ void add_tiles(float (&d)[n], std::uint32_t a, std::uint32_t b,
                                          bool accumulate = true) {
  add_all(d, [&] { issue_tiles<E, left, right, s>(d, a, b, accumulate); });
}
/// With both parts of a matrix that was split in two, which lie one after the other.
template <class E, Tile left, Tile right, int n>
__device__ __forceinline__ void add_right_parts(float (&d)[n], std::uint32_t a, std::uint32_t parts,
                                                bool accumulate) {
  add_all(d, [&] {
    issue_tiles<E, left, right, 4>(d, a, parts, accumulate);
    issue_tiles<E, left, right, 4>(d, a, parts + panel_bytes, true);
  });
}
template <class E, Tile left, Tile right, int n>
__device__ __forceinline__ void add_left_parts(float (&d)[n], std::uint32_t parts, std::uint32_t b,
                                               bool accumulate) {
  add_all(d, [&] {
    issue_tiles<E, left, right, 4>(d, parts, b, accumulate);
    issue_tiles<E, left, right, 4>(d, parts + panel_bytes, b, true);
  });
}

}  // namespace deltaport::recurrence::cuda
