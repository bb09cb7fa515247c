// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn_gradients_layout.cuh"
#include "recurrence/cuda/products.cuh"

/// What the groups of the gradient kernel share: places, copies, products.
namespace deltaport::recurrence::cuda::gradients {

/// What a kernel is for. Most often key heads have one value head, and then no loop over heads keeps addresses in
/// registers. `common`: see is_common.
enum class Case { common, single, grouped };

/// Whether whole chunks with plain gates, one value head a key head and two value tiles are all that there is. The kernel
/// for them is shorter: the groups run different code, which the instruction cache holds badly. The norm is not part of
/// it: where it is known, the compiler reads the last rows once for both of their uses, and has no registers for them.
template <int padded_k>
bool is_common(const GdnGradients& a) {
  const Activations& x = a.activations;
  return a.use_maps && a.chunks.all_whole() && a.key_dim == padded_k && a.value_dim == 128 &&
         a.value_heads == a.key_heads && x.plain_gates() && a.partials == nullptr;
}
/// Tells the compiler what it need not ask.
template <int padded_k>
__device__ __forceinline__ GdnGradients know_common(GdnGradients a) {
  Activations& x = a.activations;
  a.use_maps = true, a.chunks.cu_seqlens = nullptr, a.chunks.table = nullptr;
  a.key_dim = padded_k, a.value_dim = 128, a.value_heads = a.key_heads, a.partials = nullptr;
  x.gate = Gate::log_decay, x.beta = Beta::plain, x.a_log = x.dt_bias = nullptr;
  return a;
}

/// What the compiler makes of the two value tiles of the common case: a loop, the body twice, or a loop whose number of
/// turns is hidden from it, which needs fewer registers.
enum class Turns { counted, unrolled, hidden };

template <class E, int padded_k, Case which>
struct BlockBase {
  static constexpr bool common = which == Case::common;
  using L = Layout<padded_k>;
  static constexpr int steps = padded_k / 16;

  const GdnGradients& a;
  const GdnGradientMaps& maps;
  unsigned char* memory;
  std::int64_t slot;
  Chunk chunk;
  int key_head, heads, tiles;  // heads: value heads of the key head

  __device__ int group() const { return which == Case::grouped ? heads : 1; }
  __device__ std::uint32_t at(int offset) const { return shared_address(memory) + offset; }
  __device__ std::uint32_t value_tile(int tile, int part) const {
    return at(L::values + (tile & 1) * L::value_bytes + part);
  }
  __device__ const float* factor(int row) const {
    return reinterpret_cast<const float*>(memory + L::factors) + 64 * row;
  }
  __device__ float* sum(int row) const { return reinterpret_cast<float*>(memory + L::sums) + 64 * row; }
  __device__ std::uint64_t* barrier(int i) const {
    return reinterpret_cast<std::uint64_t*>(memory + L::barriers) + i;
  }
  /// The first warp of a group.
  __device__ static bool first_warp() {
    return __shfl_sync(0xffffffffu, threadIdx.x / 32 % (group_threads / 32), 0) == 0;
  }
  __device__ bool whole() const { return common || (a.use_maps && chunk.rows == chunk_rows); }
  __device__ std::int64_t chunk_head(int head) const { return slot * a.value_heads + head; }

  /// In the place that the last value tile has not, and which is free once the last Y is there: dX without decays, dR of
  /// the first group in float.
  __device__ std::uint32_t plain_d_x() const { return value_tile(tiles, L::s); }
  __device__ std::uint32_t float_d_r(int i, unsigned thread) const {
    return value_tile(tiles, L::v) + (i * group_threads + thread) * 16;
  }
  /// Where H lies: in the last value tile's place.
  __device__ std::uint32_t h_tile() const { return value_tile(tiles + 1, L::h); }

  template <int bytes>
  __device__ const char* image_at(const void* images, std::int64_t index) const {
    return static_cast<const char*>(images) + index * bytes;
  }
#if defined(DELTAPORT_BULK_COPY)
  /// Images and factors of a head, and tiles of a whole chunk, by one thread. K and Q are loaded once.
  __device__ void start_keys(int head, bool first, bool tiles_too) const {
    std::uint64_t* const full = barrier(loaded_keys);
    barrier_arrive_expect(full, factor_rows * 256 + (first && tiles_too ? L::wide : 0));
    if (first && tiles_too) start_rows(L::k, maps.k, full);
    copy_bulk(at(L::factors), a.factors + chunk_head(head) * factor_rows * 64, factor_rows * 256, full);
  }
  __device__ void start_products(int head) const {
    std::uint64_t* const full = barrier(loaded_products);
    barrier_arrive_expect(full, L::wide + panel_bytes);
    copy_bulk(at(L::r), image_at<panel_bytes>(a.r, chunk_head(head)), panel_bytes, full);
    copy_bulk(at(L::x), image_at<L::wide>(a.x, chunk_head(head)), L::wide, full);
  }
  __device__ void start_inverse(int head) const {
    std::uint64_t* const full = barrier(loaded_inverse);
    barrier_arrive_expect(full, 2 * panel_bytes);
    copy_bulk(at(L::inverse), image_at<2 * panel_bytes>(a.inverse, chunk_head(head)), 2 * panel_bytes, full);
  }
  __device__ void start_queries(bool tiles_too) const {
    std::uint64_t* const full = barrier(loaded_queries);
    barrier_arrive_expect(full, tiles_too ? L::wide : 0);
    if (tiles_too) start_rows(L::q, maps.q, full);
  }
  __device__ void start_rows(int to, const CUtensorMap& map, std::uint64_t* full) const {
#pragma unroll
    for (int panel = 0; panel < padded_k / 64; ++panel) {
      copy_tile_bulk(at(to) + panel * panel_bytes, &map, 64 * panel, key_head, static_cast<int>(chunk.row),
                     full);
    }
  }
  __device__ void start_values(int head, int tile, bool tiles_too) const {
    std::uint64_t* const full = barrier(loaded_values + (tile & 1));
    const std::uint32_t to = value_tile(tile, 0);
    barrier_arrive_expect(full, L::wide + (tiles_too ? 2 * panel_bytes : 0));
    copy_bulk(to + L::s, image_at<L::wide>(a.states, chunk_head(head) * tiles + tile), L::wide, full);
    if (tiles_too) {
      const int column = 64 * tile, row = static_cast<int>(chunk.row);
      copy_tile_bulk(to + L::v, &maps.v, column, head, row, full);
      copy_tile_bulk(to + L::d_o, &maps.d_o, column, head, row, full);
    }
  }
  __device__ void start_d_states(int head, int tile) const {
    std::uint64_t* const full = barrier(loaded_d_states + (tile & 1));
    barrier_arrive_expect(full, L::wide);
    copy_bulk(value_tile(tile, L::d_s), image_at<L::wide>(a.d_states, chunk_head(head) * tiles + tile),
              L::wide, full);
  }
  /// Y needs S, V and dO, which come before dS', and nobody needs A or Q before the last value tile.
  __device__ void start_head(int head, bool first, bool tiles_too) const {
    start_keys(head, first, tiles_too);
    start_values(head, 0, tiles_too);
    start_products(head);
    start_d_states(head, 0);
    if (tiles > 1) start_values(head, 1, tiles_too), start_d_states(head, 1);
    start_inverse(head);
    if (first) start_queries(tiles_too);
  }
#endif
  /// By one thread, before any other passes a barrier of the block.
  __device__ void prepare_barriers() const {
#if defined(DELTAPORT_BULK_COPY)
    const int of_images = 1, of_tiles = whole() ? 1 : group_threads + 1;
#else
    const int of_images = group_threads, of_tiles = group_threads;
#endif
    barrier_init(barrier(loaded_keys), of_tiles), barrier_init(barrier(loaded_queries), of_tiles);
    barrier_init(barrier(loaded_products), of_images), barrier_init(barrier(loaded_inverse), of_images);
    for (int i = 0; i < 2; ++i) {
      barrier_init(barrier(loaded_values + i), of_tiles);
      barrier_init(barrier(loaded_d_states + i), of_images);
    }
  }
  /// By the second group: what the copy engine does not bring of a value tile, and of a head.
  __device__ void load_values_by_threads(int head, int tile) const {
    const int thread = threadIdx.x % group_threads;
    const std::uint32_t to = value_tile(tile, 0);
#if !defined(DELTAPORT_BULK_COPY)
    const std::int64_t image = chunk_head(head) * tiles + tile;
    copy_image_async<L::wide, group_threads>(to + L::s, image_at<L::wide>(a.states, image), thread);
#endif
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const TensorTiles tensor{i == 0 ? a.v : a.d_o, a.value_heads, a.value_dim};
      tensor.load<64, group_threads>(to + i * panel_bytes, chunk.row, chunk.rows, head, 64 * tile, thread);
    }
    copies_arrive(barrier(loaded_values + (tile & 1)));
#if !defined(DELTAPORT_BULK_COPY)
    copy_image_async<L::wide, group_threads>(to + L::d_s, image_at<L::wide>(a.d_states, image), thread);
    copies_arrive(barrier(loaded_d_states + (tile & 1)));
#endif
  }
  __device__ void load_head_by_threads(int head, bool first) const {
    const int thread = threadIdx.x % group_threads;
#if !defined(DELTAPORT_BULK_COPY)
    copy_image_async<factor_rows * 256, group_threads>(
        at(L::factors), a.factors + chunk_head(head) * factor_rows * 64, thread);
    copy_image_async<L::wide, group_threads>(at(L::x), image_at<L::wide>(a.x, chunk_head(head)), thread);
    copy_image_async<panel_bytes, group_threads>(at(L::r), image_at<panel_bytes>(a.r, chunk_head(head)),
                                                 thread);
    copies_arrive(barrier(loaded_products));
#endif
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const TensorTiles tensor{i == 0 ? a.k : a.q, a.key_heads, a.key_dim};
      if (first) {
        tensor.load<padded_k, group_threads>(at(i == 0 ? L::k : L::q), chunk.row, chunk.rows, key_head, 0,
                                             thread);
      }
      if (i == 0) {
        copies_arrive(barrier(loaded_keys));
#pragma unroll 1
        for (int tile = 0; tile < min(tiles, 2); ++tile) load_values_by_threads(head, tile);
      } else if (first) {
        copies_arrive(barrier(loaded_queries));
      }
    }
#if !defined(DELTAPORT_BULK_COPY)
    copy_image_async<2 * panel_bytes, group_threads>(
        at(L::inverse), image_at<2 * panel_bytes>(a.inverse, chunk_head(head)), thread);
    copies_arrive(barrier(loaded_inverse));
#endif
  }
  /// By the second group, once nobody reads what was there.
  __device__ void load_head(int head) const {
#if defined(DELTAPORT_BULK_COPY)
    if (first_warp() && elected()) start_head(head, false, whole());
    if (whole()) return;
#endif
    load_head_by_threads(head, false);
  }
  __device__ void load_values(int head, int tile) const {
#if defined(DELTAPORT_BULK_COPY)
    if (first_warp() && elected()) start_values(head, tile, whole()), start_d_states(head, tile);
    if (whole()) return;
#endif
    load_values_by_threads(head, tile);
  }
  /// By the second group, to begin with: what the first thread has not started.
  __device__ void load_first() const {
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) return;
#endif
    load_head_by_threads(key_head * group(), true);
  }
  __device__ void wait(int load, int turn) const {
    barrier_wait(barrier(load), turn & 1);
    if (!whole()) fence_async_proxy();
  }
  /// For loads of value tiles, of which there are two places: of this one by the heads so far.
  __device__ int uses(int tile, int member) const {
    if (common) return 0;
    return member * ((tiles + 1 - (tile & 1)) >> 1) + (tile >> 1);
  }
  __device__ void wait_d_states(int tile, int member) const {
    wait(loaded_d_states + (tile & 1), uses(tile, member));
  }
  /// Y of a value tile is there. Two barriers, or the fourth group could arrive twice before the others come once. The
  /// second group arrives once it has read the states of the tile before, whose place dX takes.
  __device__ static void wait_y(int tile) {
    if (tile % 2 == 0) {
      named_barrier<sync_y, threads>();
    } else {
      named_barrier<sync_y_odd, threads>();
    }
  }
  __device__ static void arrive_y(int tile) {
    if (tile % 2 == 0) {
      named_arrive<sync_y, threads>();
    } else {
      named_arrive<sync_y_odd, threads>();
    }
  }
  /// The same for dY, from the fourth group to the second.
  __device__ static void wait_d_y(int tile) {
    if (tile % 2 == 0) {
      named_barrier<sync_d_y, 2 * group_threads>();
    } else {
      named_barrier<sync_d_y_odd, 2 * group_threads>();
    }
  }
  __device__ static void arrive_d_y(int tile) {
    if (tile % 2 == 0) {
      named_arrive<sync_d_y, 2 * group_threads>();
    } else {
      named_arrive<sync_d_y_odd, 2 * group_threads>();
    }
  }
  /// Calls body(tile) for all value tiles of the group's `member`; loads, by the second group, go two tiles ahead.
  template <bool loads = false, Turns turns = Turns::counted, class Body>
  __device__ void for_values(int head, int member, Body body) const {
    constexpr int copies = common && turns == Turns::unrolled ? 2 : 1;
    int end = tiles;
    if (common && turns == Turns::hidden) asm volatile("" : "+r"(end));
#pragma unroll copies
    for (int tile = 0; tile < end; ++tile) {
      wait(loaded_values + (tile & 1), uses(tile, member));
      body(tile);
      if (!common && tile + 2 < tiles) {
        fence_async_proxy();
        named_barrier<sync_all, threads>();
        if constexpr (loads) load_values(head, tile + 2);
      }
    }
  }

  /// dv = beta o dY, by units of eight columns.
  __device__ void write_values_gradient(int head, int tile, const float* beta, unsigned thread) const {
    const unsigned first = thread / 8, c = thread % 8 * 8;  // rows first, first + 16, ...
    const int column = 64 * tile + static_cast<int>(c);
    if (column >= a.value_dim) return;
    constexpr int rows = group_threads / 8, count = chunk_rows / rows;
    const std::uint32_t place = value_tile(tile, L::d_y) + unit_offset(first, c);
    const TensorTiles tensor{nullptr, a.value_heads, a.value_dim};
    char* to = static_cast<char*>(a.dv) + tensor.offset(chunk.row + first, head, column);
    const std::int64_t step = rows * tensor.row_bytes();
    uint4 x[count];
    float factors[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      x[i] = load_shared16(place + i * rows * 128), factors[i] = beta[first + i * rows];
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      scale_unit<E>(x[i], factors[i]);
      if (static_cast<int>(first) + i * rows < chunk.rows) *reinterpret_cast<uint4*>(to) = x[i];
      to += step;
    }
  }

  /// Rows times a factor each, rounded, to a tile.
  __device__ static void store_scaled(std::uint32_t tile, const float (&d)[padded_k / 2], float first,
                                      float second, int warp) {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int j = 8 * s;
      const std::uint32_t operand[4] = {
          pack<E>(first * d[j], first * d[j + 1]), pack<E>(second * d[j + 2], second * d[j + 3]),
          pack<E>(first * d[j + 4], first * d[j + 5]), pack<E>(second * d[j + 6], second * d[j + 7])};
      store_a(tile, 16 * warp, 16 * s, operand);
    }
  }
  /// Adds <S, dS'> of a value tile, a part of it in every thread. Not by tensor cores: products of single warps would wait
  /// there for those of the other groups.
  __device__ void add_states(float& sum, int tile, unsigned thread) const {
    constexpr int units = L::wide / 16 / group_threads, together = 4;
    const std::uint32_t first = value_tile(tile, 0) + thread * 16;
    float parts[together] = {};
#pragma unroll
    for (int i = 0; i < units; i += together) {
      uint4 s[together], d_s[together];
#pragma unroll
      for (int k = 0; k < together; ++k) {
        s[k] = load_shared16(first + L::s + (i + k) * group_threads * 16);
        d_s[k] = load_shared16(first + L::d_s + (i + k) * group_threads * 16);
      }
#pragma unroll
      for (int k = 0; k < together; ++k) add_products<E>(parts[k], s[k], d_s[k]);
    }
    sum += (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }

  /// dg and dbeta of row t by threads 0 to 63.
  __device__ void write_gates(int head, int t) const {
    float through_x = sum(sum_row_x)[t], column = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; ++w) column += sum(sum_column + w)[t];
    if (t == chunk.rows - 1) through_x = 0.0f;  // no decay between it and the state
    float d_sum = sum(sum_query)[t] + sum(sum_score)[t] + sum(sum_row)[t] - column - through_x;
    // What depends on the decay of the whole chunk belongs to the last row.
    float* const shared = sum(sum_states) + 8;
    float total = sum_warp(through_x);
    if (t % 32 == 0) shared[t / 32] = total;
    named_barrier<sync_sums, 64>();
    if (t == 63) {
      const float* states = sum(sum_states);
      d_sum += shared[0] + shared[1] +
               exp2_fast(factor(factor_decay)[63]) * (states[0] + states[1] + states[2] + states[3]);
    }
    // Suffix sums.
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float above = __shfl_down_sync(0xffffffffu, d_sum, step);
      if (t % 32 + step < 32) d_sum += above;
    }
    if (t == 32) shared[2] = d_sum;
    named_barrier<sync_sums, 64>();
    if (t < 32) d_sum += shared[2];
    write_gate_gradients<E>(a, chunk, slot, head, t, d_sum, sum(sum_beta)[t], shared + 4);
  }

  /// Gradient through the norm, and the rows to `to` by way of the tile `stage`. `d` is with respect to the normalised
  /// rows; group of 128 threads, barrier `id`, which nobody else needs any more. Behind the loop over heads: inside, what
  /// it needs would be kept in registers through all of it.
  template <int id>
  __device__ void finish_rows(float (&d)[padded_k / 2], std::uint32_t tile, const float* norm,
                              std::uint32_t stage, void* to, const CUtensorMap& map) const {
    int warp = threadIdx.x / 32 % 4;
    if (common) asm volatile("" : "+r"(warp));  // or addresses are made, and kept, when the kernel begins
    const int row = own_row(warp);
    const float scale[2] = {norm[row], norm[row + 8]};
    float dot[2] = {0.0f, 0.0f};
    if (a.activations.l2_norm) {
      for_elements<E, steps>(tile, warp, [&](int j, int part, float x) { dot[part] += d[j] * x; });
      sum_quads(dot);
    }
    const float along[2] = {scale[0] * scale[0] * dot[0], scale[1] * scale[1] * dot[1]};
    for_elements<E, steps>(tile, warp,
                           [&](int j, int part, float x) { d[j] = scale[part] * (d[j] - along[part] * x); });
    store_rows<E>(stage, d, warp);
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) {
      fence_async_proxy();
      named_barrier<id, group_threads>();
      if (first_warp() && elected()) {
#pragma unroll
        for (int panel = 0; panel < padded_k / 64; ++panel) {
          store_tile_bulk(&map, 64 * panel, key_head, static_cast<int>(chunk.row),
                          stage + panel * panel_bytes);
        }
        bulk_stores_wait_read();
      }
      return;
    }
#endif
    named_barrier<id, group_threads>();
    const TensorTiles out{to, a.key_heads, a.key_dim};
    out.store<padded_k, group_threads>(stage, chunk.row, chunk.rows, key_head, 0,
                                       threadIdx.x % group_threads);
  }
};

}  // namespace deltaport::recurrence::cuda::gradients
