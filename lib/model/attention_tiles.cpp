// SPDX-License-Identifier: Apache-2.0
#include "model/attention_core.hpp"

namespace deltaport {
namespace {

struct FillUnused {
  std::int32_t* start;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { start[i] = -1; }
};

/// Document n has the slots from floor(cu[n] / tile) + n on. Those of its successor begin at least
/// floor(length / tile) + 1 later, which is enough for all of its tiles.
struct PlaceTiles {
  const std::int32_t* cu_seqlens;
  const std::int32_t* positions;
  const std::int32_t* sequence_of;
  std::int32_t* start;
  KOKKOS_FUNCTION void operator()(std::int64_t t) const {
    const std::int64_t position = positions[t];
    if (position % attention_tile != 0) return;
    const std::int64_t n = sequence_of[t];
    start[cu_seqlens[n] / attention_tile + n + position / attention_tile] = static_cast<std::int32_t>(t);
  }
};

}  // namespace

AttentionTiles make_attention_tiles(Runtime& runtime, const Sequences& sequences) {
  const std::int64_t tokens = sequences.positions.extent(0);
  AttentionTiles tiles;
  tiles.start =
      runtime.allocate<std::int32_t>("attention tiles", Shape{tokens / attention_tile + sequences.count()});
  for_each_index(runtime.compute(), "deltaport: attention tiles", tiles.slots(),
                 FillUnused{tiles.start.data()});
  for_each_index(runtime.compute(), "deltaport: attention tiles", tokens,
                 PlaceTiles{sequences.cu_seqlens.data(), sequences.positions.data(),
                            sequences.sequence_of.data(), tiles.start.data()});
  return tiles;
}

}  // namespace deltaport
