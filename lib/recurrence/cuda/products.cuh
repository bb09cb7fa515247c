// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/wgmma.cuh"

/// Products by one group of four warps that are waited for at once, as the gradient kernels need them. `d` is the group's
/// accumulator; tiles are addresses in shared memory.
namespace deltaport::recurrence::cuda {

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
  add_all(d, [&] { multiply<E, orientation>(d, operand, tile, true); });
}
template <class E, Tile left, Tile right, int s = 4, int n>
__device__ __forceinline__ void add_tiles(float (&d)[n], std::uint32_t a, std::uint32_t b,
                                          bool accumulate = true) {
  add_all(d, [&] { multiply_tiles<E, left, right, s>(d, a, b, accumulate); });
}
/// With both parts of a matrix that was split in two, which lie one after the other.
template <class E, Tile left, Tile right, int n>
__device__ __forceinline__ void add_right_parts(float (&d)[n], std::uint32_t a, std::uint32_t parts,
                                                bool accumulate) {
  add_all(d, [&] {
    multiply_tiles<E, left, right, 4>(d, a, parts, accumulate);
    multiply_tiles<E, left, right, 4>(d, a, parts + panel_bytes, true);
  });
}
template <class E, Tile left, Tile right, int n>
__device__ __forceinline__ void add_left_parts(float (&d)[n], std::uint32_t parts, std::uint32_t b,
                                               bool accumulate) {
  add_all(d, [&] {
    multiply_tiles<E, left, right, 4>(d, parts, b, accumulate);
    multiply_tiles<E, left, right, 4>(d, parts + panel_bytes, b, true);
  });
}

}  // namespace deltaport::recurrence::cuda
