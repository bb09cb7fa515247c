// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_gradients.cuh"
#include "recurrence/cuda/movement.cuh"

/// Shared memory, barriers and loads of the first gradient kernel.
namespace deltaport::recurrence::cuda::gradients2 {

constexpr int threads = 3 * group_threads;

/// Barriers of the block; 0 is __syncthreads. After the last turn the groups meet in pairs.
enum Sync : int {
  sync_third = 1,
  sync_all,
  sync_y,
  sync_y_odd,
  sync_first,
  sync_second,
  sync_d_r,
  sync_d_x,
  sync_d_y,
  sync_d_y_odd,
  sync_d_y_third
};

/// What has been loaded: K~; the tiles of even and odd turns without dS'; dS' of the two; R and X; A. And the maxima of dP
/// and dL.
enum Loaded : int {
  loaded_erase,
  loaded_values,
  loaded_d_states = loaded_values + 2,
  loaded_products = loaded_d_states + 2,
  loaded_rest,
  made_maxima,
  barrier_count
};

/// 64 value columns of one of the value heads.
struct Turn {
  int number, head, tile;
};

template <int padded_k>
struct Layout {
  static constexpr int wide = padded_k * 128;
  static constexpr int erase = 0, d_x = 0;  // K~, then dX
  static constexpr int x = wide;
  static constexpr int r = x + wide;
  static constexpr int inverse = r + panel_bytes;  // A high, A low
  static constexpr int d_r = inverse + 2 * panel_bytes;
  static constexpr int y = d_r + panel_bytes;         // two
  static constexpr int values = y + 2 * panel_bytes;  // two of the following
  static constexpr int v = 0, w = panel_bytes, d_o = 2 * panel_bytes, d_y = 3 * panel_bytes,
                       s = 4 * panel_bytes, d_s = s + wide;
  static constexpr int value_bytes = d_s + wide;
  static constexpr int states = values + 2 * value_bytes;  // sums of S dS' of every warp
  static constexpr int maxima = states + 4 * padded_k * 4;
  static constexpr int barriers = maxima + 8 * 4;
  static constexpr int bytes = barriers + barrier_count * 8;
  static_assert(bytes <= 227 * 1024);
};

/// Whether whole chunks of normalised rows with 128 value columns and one value head a gate head are all that there is. The
/// kernel for them takes its two turns one after the other without a loop, and does in the last what need not wait for
/// its end.
template <int padded_k>
inline bool is_common(const Gdn2Gradients& a) {
  return a.use_maps && a.chunks.all_whole() && a.key_dim == padded_k && a.value_dim == 128 &&
         a.gate_heads == a.value_heads && a.l2_norm && !a.write_sigmoid;
}
/// Tells the compiler what it need not ask.
template <int padded_k>
__device__ __forceinline__ Gdn2Gradients know_common(Gdn2Gradients a) {
  a.use_maps = true, a.chunks.cu_seqlens = nullptr, a.key_dim = padded_k, a.value_dim = 128;
  a.gate_heads = a.value_heads, a.l2_norm = true, a.write_sigmoid = false;
  return a;
}

/// `common`: see is_common.
template <class E, int padded_k, bool common>
struct BlockBase {
  using L = Layout<padded_k>;
  static constexpr int steps = padded_k / 16;

  const Gdn2Gradients& a;
  const Gdn2GradientMaps& maps;
  unsigned char* memory;
  Chunk chunk;
  std::int64_t slot;
  int gate_head, tiles, members;  // value heads that share the gates

  __device__ std::uint32_t at(int offset) const { return shared_address(memory) + offset; }
  __device__ std::uint32_t value_tile(int turn, int part) const {
    return at(L::values + (turn & 1) * L::value_bytes + part);
  }
  __device__ std::uint32_t y_tile(int turn) const { return at(L::y + (turn & 1) * panel_bytes); }
  __device__ std::uint64_t* barrier(int i) const {
    return reinterpret_cast<std::uint64_t*>(memory + L::barriers) + i;
  }
  __device__ bool whole() const { return common || (a.use_maps && chunk.rows == chunk_rows); }
  __device__ std::int64_t image() const { return slot * a.gate_heads + gate_head; }
  __device__ int turns() const { return common ? 2 : tiles * members; }
  /// The compiler knows this turn to be the last.
  __device__ static bool ends(Turn turn) { return common && turn.number == 1; }
  __device__ Turn first_turn() const { return {0, gate_head * members, 0}; }
  __device__ Turn after(Turn turn) const {
    if (common) return {turn.number + 1, turn.head, turn.tile + 1};
    return turn.tile + 1 < tiles ? Turn{turn.number + 1, turn.head, turn.tile + 1}
                                 : Turn{turn.number + 1, turn.head + 1, 0};
  }

  // ---- loads -----------------------------------------------------------------------------------------------

  template <int bytes>
  __device__ const char* image_at(const void* images, std::int64_t index) const {
    return static_cast<const char*>(images) + index * bytes;
  }
#if defined(DELTAPORT_BULK_COPY)
  /// Images, and tiles of a whole chunk, by one thread.
  __device__ void start_erase() const {
    barrier_arrive_expect(barrier(loaded_erase), L::wide);
    copy_bulk(at(L::erase), image_at<L::wide>(a.erase, image()), L::wide, barrier(loaded_erase));
  }
  __device__ void start_products() const {
    std::uint64_t* const full = barrier(loaded_products);
    barrier_arrive_expect(full, L::wide + panel_bytes);
    copy_bulk(at(L::r), image_at<panel_bytes>(a.r, image()), panel_bytes, full);
    copy_bulk(at(L::x), image_at<L::wide>(a.x, image()), L::wide, full);
  }
  __device__ void start_rest() const {
    std::uint64_t* const full = barrier(loaded_rest);
    barrier_arrive_expect(full, 2 * panel_bytes);
    copy_bulk(at(L::inverse), image_at<2 * panel_bytes>(a.inverse, image()), 2 * panel_bytes, full);
  }
  __device__ void start_values(Turn turn, bool tiles_too) const {
    const std::int64_t index = (slot * a.value_heads + turn.head) * tiles + turn.tile;
    std::uint64_t* const full = barrier(loaded_values + (turn.number & 1));
    barrier_arrive_expect(full, L::wide + (tiles_too ? 3 * panel_bytes : 0));
    const std::uint32_t to = value_tile(turn.number, 0);
    copy_bulk(to + L::s, image_at<L::wide>(a.states, index), L::wide, full);
    if (tiles_too) {
      const int column = 64 * turn.tile, row = static_cast<int>(chunk.row);
      copy_tile_bulk(to + L::d_o, &maps.d_o, column, turn.head, row, full);
      copy_tile_bulk(to + L::v, &maps.v, column, turn.head, row, full);
      copy_tile_bulk(to + L::w, &maps.w, column, turn.head, row, full);
    }
    std::uint64_t* const full_too = barrier(loaded_d_states + (turn.number & 1));
    barrier_arrive_expect(full_too, L::wide);
    copy_bulk(to + L::d_s, image_at<L::wide>(a.d_states, index), L::wide, full_too);
  }
  __device__ void start_all(bool tiles_too) const {
    start_erase();
    start_values(first_turn(), tiles_too);
    start_products();
    if (turns() > 1) start_values(after(first_turn()), tiles_too);
    start_rest();
  }
#else
  __device__ void load_images_by_threads() const {
    constexpr int n = group_threads;
    copy_image_async<L::wide, n>(at(L::erase), image_at<L::wide>(a.erase, image()), threadIdx.x);
    copies_arrive(barrier(loaded_erase));
    copy_image_async<panel_bytes, n>(at(L::r), image_at<panel_bytes>(a.r, image()), threadIdx.x);
    copy_image_async<L::wide, n>(at(L::x), image_at<L::wide>(a.x, image()), threadIdx.x);
    copies_arrive(barrier(loaded_products));
    copy_image_async<2 * panel_bytes, n>(at(L::inverse), image_at<2 * panel_bytes>(a.inverse, image()),
                                         threadIdx.x);
    copies_arrive(barrier(loaded_rest));
  }
#endif
  /// By one thread, before any other passes a barrier of the block.
  __device__ void prepare_barriers() const {
#if defined(DELTAPORT_BULK_COPY)
    const int arrivals = 1, of_tiles = whole() ? 1 : group_threads + 1;
#else
    const int arrivals = group_threads, of_tiles = group_threads;
#endif
    barrier_init(barrier(loaded_erase), arrivals), barrier_init(barrier(loaded_rest), arrivals);
    barrier_init(barrier(loaded_products), arrivals);
    barrier_init(barrier(made_maxima), 2 * group_threads / 32);
    for (int i = 0; i < 2; ++i) {
      barrier_init(barrier(loaded_values + i), of_tiles);
      barrier_init(barrier(loaded_d_states + i), arrivals);
    }
  }
  /// By the first group: what the copy engine does not bring.
  __device__ void load_by_threads(Turn turn) const {
    const std::uint32_t to = value_tile(turn.number, 0);
#if !defined(DELTAPORT_BULK_COPY)
    const std::int64_t index = (slot * a.value_heads + turn.head) * tiles + turn.tile;
    copy_image_async<L::wide, group_threads>(to + L::s, image_at<L::wide>(a.states, index), threadIdx.x);
    copy_image_async<L::wide, group_threads>(to + L::d_s, image_at<L::wide>(a.d_states, index), threadIdx.x);
    copies_arrive(barrier(loaded_d_states + (turn.number & 1)));
#endif
#pragma unroll 1
    for (int i = 0; i < 3; ++i) {
      const TensorTiles tile{i == 0 ? a.v : i == 1 ? a.w : a.d_o, a.value_heads, a.value_dim};
      tile.load<64, group_threads>(to + i * panel_bytes, chunk.row, chunk.rows, turn.head, 64 * turn.tile,
                                   threadIdx.x);
    }
    copies_arrive(barrier(loaded_values + (turn.number & 1)));
  }
  /// By the first group, once nobody reads what was there.
  __device__ void load_values(Turn turn) const {
#if defined(DELTAPORT_BULK_COPY)
    if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0 && elected()) start_values(turn, whole());
    if (whole()) return;
#endif
    load_by_threads(turn);
  }
  /// By the first group, to begin with: what the first thread has not started.
  __device__ void load_first() const {
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) return;
#else
    load_images_by_threads();
#endif
#pragma unroll 1
    for (Turn turn = first_turn(); turn.number < min(turns(), 2); turn = after(turn)) load_by_threads(turn);
  }
  __device__ void wait(int which, int phase) const {
    barrier_wait(barrier(which), phase & 1);
    if (!whole()) fence_async_proxy();
  }
  __device__ void wait_d_states(Turn turn) const {
    wait(loaded_d_states + (turn.number & 1), (turn.number >> 1));
  }
  /// Calls body(turn) for all turns; loads, by the first group, go two turns ahead.
  template <bool loads = false, class Body>
  __device__ __forceinline__ void for_values(Body body) const {
    if constexpr (common) {
      const Turn first = first_turn(), last = after(first);
      wait(loaded_values, 0);
      body(first);
      wait(loaded_values + 1, 0);
      body(last);
    } else {
#pragma unroll 1
      for (Turn turn = first_turn(); turn.number < turns(); turn = after(turn)) {
        wait(loaded_values + (turn.number & 1), turn.number >> 1);
        body(turn);
        if (turn.number + 2 < turns()) {
          fence_async_proxy();
          named_barrier<sync_all, threads>();
          if constexpr (loads) load_values(after(after(turn)));
        }
      }
    }
  }
};

}  // namespace deltaport::recurrence::cuda::gradients2
