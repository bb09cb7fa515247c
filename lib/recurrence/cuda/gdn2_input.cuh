// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_levels.cuh"
#include "recurrence/cuda/gdn2_prepare.cuh"
#include "recurrence/cuda/inverse.cuh"

/// The shared memory of a block of gdn2_prepare, and what comes into it.
namespace deltaport::recurrence::cuda {

/// Shared memory of a block; tiles first, for their alignment.
template <int padded_k>
struct Gdn2Layout {
  static constexpr int threads = 2 * padded_k;
  static constexpr int tile = padded_k * 128;
  static constexpr int k = 0, q = tile, b = 2 * tile;  // later K^ (then X), Q~, K~
  static constexpr int scratch = 3 * tile;             // factors of the levels; then:
  static constexpr int far = scratch, near = far + tile;
  // L, P, A and K^ are made of rows of length 1 and in binary16: bounded, and three bits more than bfloat16 where
  // alike keys cancel (repeated keys: error of o 1.5e-2 -> 4.5e-3). What goes to the scan has the element type.
  static constexpr int triangle = scratch;  // L in float, then R
  static constexpr int p = scratch + 18 * 1024;
  static constexpr int high = p + panel_bytes, low = high + panel_bytes;
  static constexpr int scratch_bytes = 42 * 1024;
  static constexpr int halves = padded_k / 64;  // of the channels, one per warp of a strip
  static constexpr int partial =
      scratch + scratch_bytes;  // products of the second half: strip, level, lane, float4
  static constexpr int edges =
      partial + (halves - 1) * 4 * 4 * 512;                    // first and rest of every strip and channel
  static constexpr int totals = edges + 2 * 4 * padded_k * 4;  // sum of every strip and channel
  static constexpr int rows = totals + 4 * padded_k * 4;
  static constexpr int diagonal = rows + 64 * sizeof(RowScale);  // q_i . k_i
  static constexpr int key_back = diagonal + 64 * 4;
  static constexpr int barrier = key_back + 64 * 4;
  static constexpr int bytes = barrier + 16;
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

/// What a block reads: tiles of q, k and b, and the decays. `Layout` says where they and `edges`, `totals` and the
/// barrier lie.
template <class E, int padded_k, class Layout = Gdn2Layout<padded_k>>
struct Gdn2Input {
  using L = Layout;
  static constexpr int threads = L::threads;
  static constexpr int warps = threads / 32;

  const Gdn2Prepare& a;
  const Gdn2PrepareMaps& maps;
  unsigned char* memory;
  Chunk chunk;
  int head, key_head;
  std::int64_t image;  // slot and head

  template <class T>
  __device__ T* part(int offset) const {
    return reinterpret_cast<T*>(memory + offset);
  }
  __device__ std::uint32_t address(int offset) const { return shared_address(memory + offset); }
  __device__ std::uint64_t* barrier() const { return part<std::uint64_t>(L::barrier); }
  __device__ bool whole() const { return a.use_maps && chunk.rows == chunk_rows; }

  __device__ void load_tiles() const {
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) {
      if (threadIdx.x == 0) {
        barrier_arrive_expect(barrier(), 3 * L::tile);
        const int row = static_cast<int>(chunk.row);
#pragma unroll
        for (int panel = 0; panel < padded_k / 64; ++panel) {
          const int at = panel * panel_bytes, column = 64 * panel;
          copy_tile_bulk(address(L::q + at), &maps.q, column, key_head, row, barrier());
          copy_tile_bulk(address(L::k + at), &maps.k, column, key_head, row, barrier());
          copy_tile_bulk(address(L::b + at), &maps.b, column, head, row, barrier());
        }
      }
      return;
    }
#endif
    copy_rows(L::q, a.q, a.key_heads, key_head);
    copy_rows(L::k, a.k, a.key_heads, key_head);
    copy_rows(L::b, a.b, a.gate_heads, head);
    copies_commit();
  }
  __device__ void copy_rows(int tile, const void* tensor, int heads, int tensor_head) const {
    const std::int64_t row_bytes = std::int64_t{2} * heads * a.key_dim;
    const char* const from =
        static_cast<const char*>(tensor) + chunk.row * row_bytes + std::int64_t{2} * tensor_head * a.key_dim;
    copy_tile_async<padded_k, threads>(address(tile), from, row_bytes, chunk.rows, a.key_dim, threadIdx.x);
  }
  /// `turn`: of how many loads before this one.
  __device__ void wait_tiles(int turn = 0) const {
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) {
      barrier_wait(barrier(), turn % 2);
      return;
    }
#endif
    copies_wait<0>();
    __syncthreads();
  }

  /// log2 decays of a thread's channels and `count` rows from row `begin` of its strip; 0 where there is no token or
  /// channel.
  template <int count>
  __device__ void read_decays(float2 (&log2_decay)[count], const Strip& own, int begin = 0) const {
    const int first = strip_rows * own.strip + begin, rows = own.channel < a.key_dim ? chunk.rows - first : 0;
    const std::int64_t step = std::int64_t{a.gate_heads} * a.key_dim;
    const std::int64_t at = (chunk.row + first) * step + std::int64_t{head} * a.key_dim + own.channel;
    const Activations& act = a.activations;
    if (act.gate == Gate::log_decay) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        log2_decay[i] =
            i < rows ? *reinterpret_cast<const float2*>(a.g + at + i * step) : make_float2(0.0f, 0.0f);
      }
    } else {
      std::uint32_t raw[count];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        raw[i] =
            i < rows
                ? *reinterpret_cast<const std::uint32_t*>(static_cast<const E*>(a.raw_gate) + at + i * step)
                : 0;
      }
      float2 bias = {0.0f, 0.0f};
      if (act.dt_bias != nullptr && rows > 0) {
        bias = *reinterpret_cast<const float2*>(act.dt_bias + std::int64_t{head} * a.key_dim + own.channel);
      }
      const float rate = act.a_log == nullptr ? 1.0f : expf(act.a_log[head]), bound = act.gate_lower_bound;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float2 x = unpack<E>(raw[i]);
        const float2 natural = {natural_decay(act.gate, x.x + bias.x, rate, bound),
                                natural_decay(act.gate, x.y + bias.y, rate, bound)};
        log2_decay[i] = i < rows ? natural : make_float2(0.0f, 0.0f);
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      log2_decay[i] = make_float2(clamped_log2(log2_decay[i].x), clamped_log2(log2_decay[i].y));
    }
  }
  /// From logarithms to decays; notes the strip's products and, if asked for, its sums, in place of the first decay's row.
  __device__ void take_decays(float2 (&decay)[strip_rows], const Strip& own) const {
    if (a.sums != nullptr) write_local_sums(decay, own);
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) decay[i] = make_float2(exp2_fast(decay[i].x), exp2_fast(decay[i].y));
    float2 rest = decay[1];
#pragma unroll
    for (int i = 2; i < strip_rows; ++i) rest = rest * decay[i];
    float2* const edges = part<float2>(L::edges) + own.strip * (padded_k / 2) + own.channel / 2;
    edges[0] = decay[0];
    edges[2 * padded_k] = rest;
  }
  __device__ float2* sums_at(const Strip& own) const {
    return reinterpret_cast<float2*>(a.sums + (image * chunk_rows + strip_rows * own.strip) * padded_k +
                                     own.channel);
  }
  __device__ void write_local_sums(const float2 (&log2_decay)[strip_rows], const Strip& own) const {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) {
      sum.x += log2_decay[i].x, sum.y += log2_decay[i].y;
      sums_at(own)[i * (padded_k / 2)] = sum;
    }
    part<float2>(L::totals)[own.strip * (padded_k / 2) + own.channel / 2] = sum;
  }
  /// Adds the sums of the strips before; the thread reads what it has written itself.
  __device__ void finish_sums(const Strip& own) const {
    float2 before = {0.0f, 0.0f};
    for (int s = 0; s < own.strip; ++s) {
      const float2 total = part<float2>(L::totals)[s * (padded_k / 2) + own.channel / 2];
      before.x += total.x, before.y += total.y;
    }
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) {
      float2& sum = sums_at(own)[i * (padded_k / 2)];
      sum = make_float2(sum.x + before.x, sum.y + before.y);
    }
  }
};

}  // namespace deltaport::recurrence::cuda
