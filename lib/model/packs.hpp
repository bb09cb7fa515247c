// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "deltaport/core/dtype.hpp"
#include "deltaport/core/parallel.hpp"

/// Rows by groups of lanes, for devices alone: each lane holds packs of neighbouring elements in its registers, so that
/// memory sees accesses of 16 bytes and a row is read once. Hosts vectorise plain loops instead (row_sum.hpp), and rows that
/// packs cannot take go to those kernels on devices too. tests/model/packs_test.cpp runs packs on hosts, one thread a lane.
namespace deltaport {

/// W consecutive elements, moved by accesses of up to 16 bytes.
template <class T, int W>
struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Pack {
  T at[W];
};

template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION void unpack(const Pack<T, W>& raw, Accumulate<T> (&to)[W]) {
  for (int j = 0; j < W; ++j) to[j] = widen(raw.at[j]);
}
template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<T, W> load_raw(const T* from) {
  return *reinterpret_cast<const Pack<T, W>*>(from);
}
template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_pack(const T* from, Accumulate<T> (&to)[W]) {
  unpack(load_raw<W>(from), to);
}
/// Rounds to nearest even, two at a time where the device can.
template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<T, W> round_pack(const Accumulate<T> (&from)[W]) {
  Pack<T, W> raw;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, bfloat16> && W % 2 == 0) {
    for (int j = 0; j < W; j += 2) {
      unsigned two;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(from[j + 1]), "f"(from[j]));
      memcpy(raw.at + j, &two, sizeof two);
    }
    return raw;
  }
#endif
  for (int j = 0; j < W; ++j) raw.at[j] = static_cast<T>(from[j]);
  return raw;
}
template <int W, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_pack(T* to, const Accumulate<T> (&from)[W]) {
  const Pack<T, W> raw = round_pack<W, T>(from);
#ifdef __CUDA_ARCH__
  // A plain assignment may be taken apart into stores of single elements.
  using Word =
      std::conditional_t<sizeof(raw) % 16 == 0, uint4, std::conditional_t<sizeof(raw) == 8, uint2, unsigned>>;
  static_assert(sizeof(raw) % sizeof(Word) == 0);
  Word words[sizeof(raw) / sizeof(Word)];
  memcpy(words, &raw, sizeof(raw));
  for (std::size_t i = 0; i < sizeof(raw) / sizeof(Word); ++i)
    __stwb(reinterpret_cast<Word*>(to) + i, words[i]);
#else
  *reinterpret_cast<Pack<T, W>*>(to) = raw;
#endif
}

/// Elements of a lane's pack, where nothing else is said.
inline constexpr int pack_width = 8;
/// Longest row that one group of lanes holds in its registers.
inline constexpr std::int64_t widest_row = 32 * pack_width;
/// Lanes that share such a row.
inline int row_lanes(std::int64_t width) {
  return width <= 16 * pack_width ? 16 : 32;
}

/// Whether rows of `width` elements that begin at these addresses, these elements apart, can be read by packs.
inline bool packable(std::int64_t width, std::initializer_list<const void*> pointers,
                     std::initializer_list<std::int64_t> strides = {}) {
  if (runs_on_host || width % pack_width != 0) return false;
  for (const void* pointer : pointers)
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  for (const std::int64_t stride : strides)
    if (stride % pack_width != 0) return false;
  return true;
}

inline constexpr int group_threads = 128;  ///< of one block

/// Enqueues functor(team) for `groups` groups of `lanes` lanes (16 or 32). The last block may hold groups
/// beyond: see group_of().
template <class Functor>
void for_each_group(const ExecutionSpace& exec, const char* label, std::int64_t groups, int lanes,
                    const Functor& functor) {
  if (groups <= 0) return;
  const int team = group_threads / lanes;
  enqueue_kernel(label, TeamPolicy(exec, static_cast<int>((groups + team - 1) / team), team, lanes), functor);
}

template <class Team>
KOKKOS_FORCEINLINE_FUNCTION std::int64_t group_of(const Team& team) {
  return static_cast<std::int64_t>(team.league_rank()) * team.team_size() + team.team_rank();
}

/// What is declared in the body of a kernel is each lane's own on devices; this is the lane's index.
KOKKOS_FORCEINLINE_FUNCTION int lane_of(const TeamMember& team, int lanes) {
#ifdef __CUDA_ARCH__
  return static_cast<int>(threadIdx.x);
#else
  int lane = 0;
  Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lanes), [&](const int i) { lane = i; });
  return lane;
#endif
}

#ifdef __CUDA_ARCH__
/// `mine` of every lane put together by `join`, in the order of a butterfly: all lanes get the same bits. Written out,
/// since a reduction over a vector range costs twenty times the instructions.
template <class A, class Join>
__device__ __forceinline__ A join_lanes(int lanes, A mine, const Join& join) {
  const unsigned mask = lanes == 32 ? 0xffffffffU : 0xffffU << (threadIdx.y % 2 * 16);
  if (lanes == 32) mine = join(mine, __shfl_xor_sync(mask, mine, 16));
#pragma unroll
  for (int step = 8; step > 0; step /= 2) mine = join(mine, __shfl_xor_sync(mask, mine, step));
  return mine;
}
#endif

/// Sum of every lane's `mine`, in a fixed order; all lanes get it.
template <class A>
KOKKOS_FORCEINLINE_FUNCTION A group_sum(const TeamMember& team, int lanes, A mine) {
#ifdef __CUDA_ARCH__
  return join_lanes(lanes, mine, [](A a, A b) { return a + b; });
#else
  A total = 0;
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, lanes), [&](const int, A& sum) { sum += mine; }, total);
  return total;
#endif
}

template <class A>
KOKKOS_FORCEINLINE_FUNCTION A group_min(const TeamMember& team, int lanes, A mine) {
#ifdef __CUDA_ARCH__
  return join_lanes(lanes, mine, [](A a, A b) { return b < a ? b : a; });
#else
  A least = mine;
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, lanes),
      [&](const int, A& other) { other = mine < other ? mine : other; }, Kokkos::Min<A>(least));
  return least;
#endif
}

}  // namespace deltaport
