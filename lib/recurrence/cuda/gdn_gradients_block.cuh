// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn_gradients_layout.cuh"
#include "recurrence/cuda/products.cuh"

/// What the groups of the gradient kernel share: places, copies, products.
namespace deltaport::recurrence::cuda::gradients {

template <class E, int padded_k>
struct BlockBase {
  using L = Layout<padded_k>;
  static constexpr int steps = padded_k / 16;

  const GdnGradients& a;
  const GdnGradientMaps& maps;
  unsigned char* memory;
  std::int64_t slot;
  Chunk chunk;
  int key_head, group, tiles;

  __device__ std::uint32_t at(int offset) const { return shared_address(memory) + offset; }
  __device__ std::uint32_t value_tile(int tile, int part) const {
    return at(L::values + (tile % 2) * L::value_bytes + part);
  }
  __device__ const float* factor(int row) const {
    return reinterpret_cast<const float*>(memory + L::factors) + 64 * row;
  }
  __device__ float* sum(int row) const { return reinterpret_cast<float*>(memory + L::sums) + 64 * row; }
  __device__ std::uint64_t* barrier(int i) const {
    return reinterpret_cast<std::uint64_t*>(memory + L::barriers) + i;
  }
  __device__ bool whole() const { return a.use_maps && chunk.rows == chunk_rows; }
  __device__ std::int64_t chunk_head(int head) const { return slot * a.value_heads + head; }

  /// By the second group: K (once) and the factors of a head, which all begin with.
  __device__ void load_keys(int head, bool first) const {
    const float* const numbers = a.factors + chunk_head(head) * factor_rows * 64;
    const int thread = threadIdx.x % group_threads;
    std::uint64_t* const full = barrier(loaded_keys);
    const TensorTiles k{a.k, a.key_heads, a.key_dim};
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      barrier_arrive_expect(full, factor_rows * 256 + (first && whole() ? L::wide : 0));
      copy_bulk(at(L::factors), numbers, factor_rows * 256, full);
      if (first && whole()) k.load_bulk<padded_k>(at(L::k), maps.k, chunk.row, key_head, 0, full);
    }
#else
    for (int i = thread; i < factor_rows * 16; i += group_threads) {
      copy16_async(at(L::factors) + 16 * i, numbers + 4 * i, true);
    }
#endif
    if (first && !whole()) {
      k.load<padded_k, group_threads>(at(L::k), chunk.row, chunk.rows, key_head, 0, thread);
    }
    copies_arrive(full);
  }
  /// By the second group: Q (once), A, R and X of a head.
  __device__ void load_rest(int head, bool first) const {
    const char *const images = static_cast<const char*>(a.inverse) + chunk_head(head) * 2 * panel_bytes,
                      *const x = static_cast<const char*>(a.x) + chunk_head(head) * L::wide,
                      *const r = static_cast<const char*>(a.r) + chunk_head(head) * panel_bytes;
    const int thread = threadIdx.x % group_threads;
    std::uint64_t* const full = barrier(loaded_rest);
    const TensorTiles q{a.q, a.key_heads, a.key_dim};
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      barrier_arrive_expect(full, 3 * panel_bytes + L::wide + (first && whole() ? L::wide : 0));
      copy_bulk(at(L::x), x, L::wide, full);
      copy_bulk(at(L::r), r, panel_bytes, full);
      if (first && whole()) q.load_bulk<padded_k>(at(L::q), maps.q, chunk.row, key_head, 0, full);
      copy_bulk(at(L::inverse), images, 2 * panel_bytes, full);
    }
#else
    copy_image_async<L::wide, group_threads>(at(L::x), x, thread);
    copy_image_async<panel_bytes, group_threads>(at(L::r), r, thread);
    copy_image_async<2 * panel_bytes, group_threads>(at(L::inverse), images, thread);
#endif
    if (first && !whole()) {
      q.load<padded_k, group_threads>(at(L::q), chunk.row, chunk.rows, key_head, 0, thread);
    }
    copies_arrive(full);
  }
  /// By the second group: what belongs to 64 value columns.
  __device__ void load_values(int head, int tile) const {
    std::uint64_t* const full = barrier(loaded_values + tile % 2);
    const std::int64_t image = (chunk_head(head) * tiles + tile) * L::wide;
    const char *const s = static_cast<const char*>(a.states) + image, *const d_s = static_cast<const char*>(
                                                                                       a.d_states) +
                                                                                   image;
    const TensorTiles v{a.v, a.value_heads, a.value_dim}, d_o{a.d_o, a.value_heads, a.value_dim},
        d_y{a.d_y, a.value_heads, a.value_dim};
    const int column = 64 * tile, thread = threadIdx.x % group_threads;
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      barrier_arrive_expect(full, 2 * L::wide + (whole() ? 3 * panel_bytes : 0));
      copy_bulk(value_tile(tile, L::s), s, L::wide, full);
      if (whole()) {
        v.load_bulk<64>(value_tile(tile, L::v), maps.v, chunk.row, head, column, full);
        d_y.load_bulk<64>(value_tile(tile, L::d_y), maps.d_y, chunk.row, head, column, full);
        d_o.load_bulk<64>(value_tile(tile, L::d_o), maps.d_o, chunk.row, head, column, full);
      }
      copy_bulk(value_tile(tile, L::d_s), d_s, L::wide, full);
    }
#else
    for (int i = thread; i < L::wide / 16; i += group_threads) {
      copy16_async(value_tile(tile, L::s) + 16 * i, s + 16 * i, true);
      copy16_async(value_tile(tile, L::d_s) + 16 * i, d_s + 16 * i, true);
    }
#endif
    if (!whole()) {
      v.load<64, group_threads>(value_tile(tile, L::v), chunk.row, chunk.rows, head, column, thread);
      d_o.load<64, group_threads>(value_tile(tile, L::d_o), chunk.row, chunk.rows, head, column, thread);
      d_y.load<64, group_threads>(value_tile(tile, L::d_y), chunk.row, chunk.rows, head, column, thread);
    }
    copies_arrive(full);
  }
  __device__ void load_all(int head, bool first) const {
    load_keys(head, first);
    for (int tile = 0; tile < min(tiles, 2); ++tile) load_values(head, tile);
    load_rest(head, first);
  }
  __device__ void wait(int which, int turn) const {
    barrier_wait(barrier(which), turn % 2);
    fence_async_proxy();
  }
  /// Calls body(tile) for all value tiles of the group's `member`; loads go two tiles ahead.
  template <Loads loads = Loads::others, class Body>
  __device__ void for_values(int head, int member, Body body) const {
    for (int tile = 0; tile < tiles; ++tile) {
      const int uses_by_a_head = (tiles + 1 - tile % 2) / 2;  // of this one of the two places
      wait(loaded_values + tile % 2, member * uses_by_a_head + tile / 2);
      body(tile);
      if (tile + 2 < tiles) {
        fence_async_proxy();
        named_barrier<sync_all, threads>();
        if constexpr (loads == Loads::own) load_values(head, tile + 2);
      }
    }
  }

  /// d = rows times `tile`^T, both 64 x K.
  __device__ static void gram(float (&d)[32], std::uint32_t rows, std::uint32_t tile) {
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(d, rows, tile, false);
  }
  /// Gradient through the norm, and the rows to `to` by way of the tile `stage`. `d` is with respect to the normalised
  /// rows; group of 128 threads, barrier `id`.
  template <int id>
  __device__ void finish_rows(float (&d)[padded_k / 2], std::uint32_t tile, const float* norm,
                              std::uint32_t stage, void* to, const CUtensorMap& map) const {
    const int warp = threadIdx.x / 32 % 4, row = own_row(warp);
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
      if (threadIdx.x % group_threads == 0) {
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
