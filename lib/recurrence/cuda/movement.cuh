// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/chunks.cuh"
#include "recurrence/cuda/pipeline.cuh"
#include "recurrence/cuda/tensor_map.hpp"

/// Tiles of the users' tensors [rows, heads, dim] to and from shared memory: 64 rows and 64 columns a panel. Chunks of
/// 64 rows go by the copy engine, where there is one; shorter ones by the threads, since rows of the next sequence must
/// not come along.
namespace deltaport::recurrence::cuda {

/// True in one thread of a warp. ptxas knows then that bulk copies need no loop over lanes.
__device__ __forceinline__ bool elected() {
#if defined(DELTAPORT_BULK_COPY)
  std::uint32_t is = 0;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; @p mov.u32 %0, 1; }" : "+r"(is));
  return is != 0;
#else
  return threadIdx.x % 32 == 0;
#endif
}

struct TensorTiles {
  const void* base = nullptr;
  int heads = 1, dim = 64;

  __device__ std::int64_t row_bytes() const { return std::int64_t{2} * heads * dim; }
  __device__ const char* at(std::int64_t row, int head, int column) const {
    return static_cast<const char*>(base) + offset(row, head, column);
  }
  __device__ std::int64_t offset(std::int64_t row, int head, int column) const {
    return row * row_bytes() + 2 * (std::int64_t{head} * dim + column);
  }
#if defined(DELTAPORT_BULK_COPY)
  /// By one thread.
  template <int columns>
  __device__ void load_bulk(std::uint32_t tile, const CUtensorMap& map, std::int64_t row, int head,
                            int column, std::uint64_t* barrier) const {
#pragma unroll
    for (int panel = 0; panel < columns / 64; ++panel) {
      copy_tile_bulk(tile + panel * panel_bytes, &map, column + 64 * panel, head, static_cast<int>(row),
                     barrier);
    }
  }
#endif
  /// By `threads` threads; rows from `rows` on and columns outside become zero.
  template <int columns, int threads>
  __device__ void load(std::uint32_t tile, std::int64_t row, int rows, int head, int column,
                       int thread) const {
    copy_tile_async<columns, threads>(tile, at(row, head, column), row_bytes(), rows,
                                      min(columns, dim - column), thread);
  }
  template <int columns, int threads>
  __device__ void store(std::uint32_t tile, std::int64_t row, int rows, int head, int column,
                        int thread) const {
    char* const to = const_cast<char*>(at(row, head, column));
    const int width = min(columns, dim - column);
#pragma unroll 2
    for (int step = 0; step < chunk_rows * columns / 8 / threads; ++step) {
      const int index = step * threads + thread, r = index / (columns / 8), c = (index % (columns / 8)) * 8;
      if (r < rows && c < width) {
        *reinterpret_cast<uint4*>(to + r * row_bytes() + 2 * c) = load_shared16(tile + unit_offset(r, c));
      }
    }
  }
};

/// How a scan may be cut in time, see Place. One segment: not at all.
struct Segments {
  int count = 1;   ///< of each sequence, at most
  int length = 0;  ///< chunks in a segment but the last
  /// [slots, heads]: bounds of log2 of what a chunk leaves of the state before it; several value heads may share one.
  const float* forgetting = nullptr;
  int heads = 1;
};
/// Chunks at a boundary between segments that decide whether it is one.
constexpr int deciding_chunks = 4;
/// From the shapes alone, so that the same call always gives the same bits: as many as keep `processors` busy.
inline Segments choose_segments(std::int64_t scans, std::int64_t longest_chunks, int processors,
                                bool may_cut) {
  constexpr std::int64_t shortest = 8;
  std::int64_t count = may_cut ? processors / scans : 1;
  if (count > longest_chunks / shortest) count = longest_chunks / shortest;
  if (count <= 1) return {};
  Segments segments;
  segments.count = static_cast<int>(count);
  segments.length = static_cast<int>((longest_chunks + count - 1) / count);
  return segments;
}

/// Whether anyone asks what the chunk of a slot forgets.
__device__ __forceinline__ bool decides(const Segments& segments, const Chunks& chunks, std::int64_t slot) {
  if (segments.count <= 1) return false;
  if (chunks.cu_seqlens != nullptr) return true;
  const unsigned chunk = static_cast<unsigned>(slot) % static_cast<unsigned>(chunks.chunks_per_sequence) %
                         static_cast<unsigned>(segments.length);
  return chunk < deciding_chunks || chunk + deciding_chunks >= static_cast<unsigned>(segments.length);
}

/// A piece of one head of one sequence, as a scan walks along it; `tile` is its first value column.
///
/// Where less than 2^-40 is left of a state after a few chunks, float32 knows nothing of it any more: a segment that
/// begins behind such chunks is scanned apart, from a zero state `quiet` chunks earlier. Other segments are taken together
/// with the one before. The decision reads only chunks of the past (forward) or the future (reverse scan).
/// How much a chunk leaves: with keys of length at most one and 0 <= beta <= 2 a step of GDN shrinks what the state was
/// before by its decay. GDN2's steps may enlarge it; gdn2_prepare bounds the norm of what a whole chunk does.
struct Place {
  std::int64_t row0, slot0, sequence, length;  // of the first chunk; rows from it to the end of the sequence
  int chunks, quiet;                           // turns, of which so many without result
  int head, key_head, tile;
  bool first, last;  // holds the first, the last chunk of the sequence

  __device__ std::int64_t row(int i) const { return row0 + std::int64_t{i} * chunk_rows; }
  __device__ int rows(int i) const {
    const std::int64_t left = length - std::int64_t{i} * chunk_rows;
    return static_cast<int>(left < chunk_rows ? left : chunk_rows);
  }
};

enum class Direction { forward, reverse };

/// Chunks to scan before `boundary` (behind it, in reverse) until the state of the other side is forgotten; 0: too many.
template <Direction direction>
__device__ __forceinline__ int warm_up(const Segments& segments, std::int64_t slot0, int chunks, int boundary,
                                       int head) {
  constexpr float forgotten = -40.0f;
  float decay[deciding_chunks];
#pragma unroll
  for (int w = 0; w < deciding_chunks; ++w) {
    const int c = direction == Direction::forward ? boundary - 1 - w : boundary + w;
    decay[w] = c >= 0 && c < chunks ? segments.forgetting[(slot0 + c) * segments.heads + head] : 0.0f;
  }
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < deciding_chunks; ++w) {
    sum += decay[w];
    if (sum <= forgotten) return w + 1;
  }
  return 0;
}

/// The piece of block `block`; false: it has none. Value tiles run fastest, so that blocks which read the same keys run
/// together.
template <Direction direction>
__device__ __forceinline__ bool find_place(Place& place, std::int64_t block, const Chunks& chunks,
                                           int key_heads, int value_heads, int value_dim,
                                           const Segments& segments) {
  const int tiles = (value_dim + 63) / 64;
  place.tile = static_cast<int>(block % tiles) * 64;
  const std::int64_t sequence_head = block / tiles;
  place.head = static_cast<int>(sequence_head % value_heads);
  const std::int64_t piece = sequence_head / value_heads;
  place.sequence = piece % chunks.sequences;
  const int segment = static_cast<int>(piece / chunks.sequences);
  place.key_head = place.head / (value_heads / key_heads);
  const int sequence = static_cast<int>(place.sequence);
  const std::int64_t row0 = chunks.begin(sequence), length = chunks.length(sequence),
                     slot0 = chunks.first_slot(sequence);
  const int total = static_cast<int>((length + chunk_rows - 1) / chunk_rows);
  int begin = 0, end = total, before = 0, behind = 0;
  if (segments.count > 1) {
    const int own = segments.length * segment;
    if (segment > 0 && own >= total) return false;
    const auto warm = [&](int boundary) {
      return warm_up<direction>(segments, slot0, total, boundary,
                                place.head / (value_heads / segments.heads));
    };
    if (direction == Direction::forward) {
      if (segment > 0 && (before = warm(own)) == 0) return false;
      begin = own;
      end = own + segments.length;
      while (end < total && warm(end) == 0) end += segments.length;
    } else {
      if (own + segments.length < total && (behind = warm(own + segments.length)) == 0) return false;
      begin = own;
      end = own + segments.length;
      while (begin > 0 && warm(begin) == 0) begin -= segments.length;
    }
    if (end > total) end = total;
  }
  place.first = begin == 0, place.last = end == total;
  begin -= before, end += behind;
  place.row0 = row0 + std::int64_t{begin} * chunk_rows, place.slot0 = slot0 + begin;
  place.length = length - std::int64_t{begin} * chunk_rows;
  place.chunks = end - begin, place.quiet = before + behind;
  return true;
}

}  // namespace deltaport::recurrence::cuda
