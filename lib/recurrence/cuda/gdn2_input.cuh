// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_prepare.cuh"
#include "recurrence/cuda/gdn2_spans.cuh"
#include "recurrence/cuda/inverse.cuh"

/// The shared memory of a block of gdn2_prepare, and what comes into it.
namespace deltaport::recurrence::cuda {

/// Shared memory of a block; tiles first, for their alignment.
template <int padded_k>
struct Gdn2Layout {
  static constexpr int threads = 2 * padded_k, channels = padded_k;
  static constexpr int tile = padded_k * 128;
  static constexpr int k = 0;                   // later K^
  static constexpr int q = tile, b = q + tile;  // later operands of the spans, then A in two parts
  static constexpr int joint = b + tile;        // operands of the spans, then X
  // L, P, A and K^ are made of rows of length 1 and in binary16: bounded, and three bits more than bfloat16 where
  // alike keys cancel (repeated keys: error of o 1.5e-2 -> 4.5e-3). What goes to the scan has the element type.
  static constexpr int high = q, low = high + panel_bytes;
  static constexpr int triangle = joint + tile;  // L in float, then R
  static constexpr int p = triangle + 18 * 1024;
  static constexpr int edges =
      p + panel_bytes;  // decay of the first row, of the rest and of all of every octet and channel
  static constexpr int kept = edges + 3 * 8 * padded_k * 4;  // four factors of every thread
  static constexpr int rows = kept + 4 * 8 * threads;
  static constexpr int diagonal = rows + 64 * sizeof(RowScale);  // q_i . k_i
  static constexpr int key_back = diagonal + 64 * 4;
  static constexpr int barrier = key_back + 64 * 4;
  static constexpr int bytes = barrier + 16;
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

/// What a block reads: tiles of q, k and b, and the decays. `Layout` says where they, `edges` and the barrier
/// lie.
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
  int first_channel;   // of the L::channels that the block has

  template <class T>
  __device__ T* part(int offset) const {
    return reinterpret_cast<T*>(memory + offset);
  }
  __device__ std::uint32_t address(int offset) const { return shared_address(memory + offset); }
  __device__ std::uint64_t* barrier() const { return part<std::uint64_t>(L::barrier); }
  __device__ bool whole() const { return a.use_maps && chunk.rows == chunk_rows; }

  /// The first warp starts copies by the copy engine, once one of its threads has set the barrier up; `b_later`: b comes
  /// last, to the barrier behind it.
  template <bool b_later = false>
  __device__ void load_tiles() const {
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) {
      if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0 && elected()) {
        barrier_arrive_expect(barrier(), (b_later ? 2 : 3) * L::tile);
        if (b_later) barrier_arrive_expect(barrier() + 1, L::tile);
        const int row = static_cast<int>(chunk.row);
#pragma unroll
        for (int panel = 0; panel < L::channels / 64; ++panel) {
          const int at = panel * panel_bytes, column = first_channel + 64 * panel;
          copy_tile_bulk(address(L::q + at), &maps.q, column, key_head, row, barrier());
          copy_tile_bulk(address(L::k + at), &maps.k, column, key_head, row, barrier());
          if (!b_later) copy_tile_bulk(address(L::b + at), &maps.b, column, head, row, barrier());
        }
#pragma unroll
        for (int panel = 0; b_later && panel < L::channels / 64; ++panel) {
          copy_tile_bulk(address(L::b + panel * panel_bytes), &maps.b, first_channel + 64 * panel, head, row,
                         barrier() + 1);
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
    const char* const from = static_cast<const char*>(tensor) + chunk.row * row_bytes +
                             2 * (std::int64_t{tensor_head} * a.key_dim + first_channel);
    copy_tile_async<L::channels, threads>(address(tile), from, row_bytes, chunk.rows,
                                          min(L::channels, a.key_dim - first_channel), threadIdx.x);
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

  /// Then for b, where it comes later.
  __device__ void wait_b() const {
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) barrier_wait(barrier() + 1, 0);
#endif
  }

  /// What the decays of `count` rows and four channels are made of: their logarithms or pre-activations.
  template <int count>
  struct Gates {
    float4 logs[count];
    uint2 raw[count];
    float4 bias;
    Rate rate;
  };
  __device__ bool logs_given() const {
    return a.activations.gate == Gate::log_decay;
  }
  /// From row `first` and channel `channel`.
  template <int count>
  __device__ void read_gates(Gates<count>& gates, int channel, int first) const {
    const bool inside = channel < a.key_dim;
    const int rows = inside ? chunk.rows - first : 0;
    const unsigned step = static_cast<unsigned>(a.gate_heads) * a.key_dim;  // elements of a row
    const int column = inside ? channel : 0;
    const std::int64_t from = (chunk.row + first) * step + static_cast<unsigned>(head) * a.key_dim + column;
    if (logs_given()) {
      read_rows(gates.logs, a.g + from, step * unsigned(sizeof(float)), rows);
      return;
    }
    read_rows(gates.raw, static_cast<const E*>(a.raw_gate) + from, step * unsigned(sizeof(E)), rows);
    gates.bias = {};
    if (a.activations.dt_bias != nullptr) {
      const float* const bias = a.activations.dt_bias + static_cast<unsigned>(head) * a.key_dim + column;
      gates.bias = {bias[0], bias[1], bias[2], bias[3]};
    }
    gates.rate = read_rate(a.activations, head);
  }
  /// log2 decays; 0 where there is no token or channel. Not clamped: 2^-inf is 0.
  template <int count>
  __device__ void take_gates(float4 (&log2_decay)[count], const Gates<count>& gates, int channel,
                             int first) const {
    const Activations& act = a.activations;
    if (logs_given()) {
#pragma unroll
      for (int i = 0; i < count; ++i) log2_decay[i] = gates.logs[i] * log2_e;
      return;
    }
    const int rows = channel < a.key_dim ? chunk.rows - first : 0;
    const auto decay = [&](float x, float bias) {
      return natural_decay(act.gate, x + bias, gates.rate, act.gate_lower_bound) * log2_e;
    };
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float4 x = unpack<E>(gates.raw[i]), bias = gates.bias;
      log2_decay[i] = {decay(x.x, bias.x), decay(x.y, bias.y), decay(x.z, bias.z), decay(x.w, bias.w)};
      if (i >= rows) log2_decay[i] = {};
    }
  }
  /// x[i] from i times `step_bytes` behind `from`; zero from `rows` on. All loads go out together.
  template <class T, int count>
  __device__ static void read_rows(T (&x)[count], const void* from, unsigned step_bytes, int rows) {
    const char* const bytes = static_cast<const char*>(from);
    if (rows >= count) {
#pragma unroll
      for (int i = 0; i < count; ++i)
        x[i] = *reinterpret_cast<const T*>(bytes + std::uint64_t{step_bytes} * i);
    } else {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        x[i] = T{};
        if (i < rows) x[i] = *reinterpret_cast<const T*>(bytes + std::uint64_t{step_bytes} * i);
      }
    }
  }
  /// The products of a strip.
  __device__ void note_edges(const float2 (&decay)[strip_rows], const Strip& own) const {
    float2 rest = decay[1];
#pragma unroll
    for (int i = 2; i < strip_rows; ++i) rest = rest * decay[i];
    constexpr int pairs = L::channels / 2;
    float2* const edges = part<float2>(L::edges) + own.strip * pairs + own.channel / 2;
    edges[0] = decay[0];
    edges[4 * pairs] = rest;
  }
  /// The products of all strips in a thread's channels.
  __device__ StripFactors factors(const Strip& own) const {
    constexpr int pairs = L::channels / 2;
    const float2* const edges = part<float2>(L::edges) + own.channel / 2;
    float2 first[4], rest[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) first[s] = edges[s * pairs], rest[s] = edges[(4 + s) * pairs];
    return strip_factors(first, rest, own.strip);
  }
};

}  // namespace deltaport::recurrence::cuda
