// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "offload/saved_layers.hpp"

namespace deltaport::offload {
namespace {

using test::movers;
using test::SavedLayers;

constexpr auto bytes = static_cast<std::int64_t>(SavedLayers::bytes);

TEST(DeviceMemory, DeviceMemoryIsThatOfTheSlots) {
  constexpr int layers = 12;
  for (const int slots : {1, 2, 4}) {
    SavedLayers model(movers(slots));
    model.passes(1, layers);
    model.arena().reset_peak();
    model.passes(2, layers);
    EXPECT_TRUE(model.right());
    // The slots, the group being computed, scratch, and the one being taken.
    EXPECT_LE(model.arena().stats().allocated_peak, static_cast<std::size_t>((slots + 3) * bytes)) << slots;
    EXPECT_EQ(model.arena().stats().allocated, 0U);
  }
  SavedLayers nothing_moves(movers(1, 0.0));
  nothing_moves.passes(1, layers);
  EXPECT_GE(nothing_moves.arena().stats().allocated_peak, static_cast<std::size_t>(layers * bytes));
}

TEST(DeviceMemory, WarmUpHoldsNoMoreThanLaterPasses) {
  SavedLayers model(movers(2));
  model.passes(1, 12);
  EXPECT_LE(model.arena().stats().allocated_peak, static_cast<std::size_t>(5 * bytes));
}

TEST(DeviceMemory, MoreCopiesUnderWayThanAllowedWait) {
  OffloaderOptions options = movers(4);
  options.max_inflight = 1;
  SavedLayers model(options);
  model.passes(1, 12);
  model.arena().reset_peak();
  model.passes(1, 12);
  EXPECT_TRUE(model.right());
  // Eight move and one of them is under way; the four that stay fill the device.
  EXPECT_LE(model.arena().stats().allocated_peak, static_cast<std::size_t>(7 * bytes));
  options.max_inflight = 5;
  EXPECT_THROW(SavedLayers{options}, ConfigError);
}

}  // namespace
}  // namespace deltaport::offload
