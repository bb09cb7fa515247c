// SPDX-License-Identifier: Apache-2.0
// Without one of the orders, and with the other side late, backward sees wrong values: the tests of ordering_test.cpp
// would notice. These runs have data races on purpose; sanitizer builds leave them out.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "offload/saved_layers.hpp"

namespace deltaport::offload {
namespace {

using test::Edge;
using test::Lane;
using test::SavedLayers;
using test::SimulatedDevice;

bool right_without(const Edge& edge, Lane late) {
  SimulatedDevice::Options device;
  device.ignored = {edge};
  device.hooks[static_cast<std::size_t>(late)].before = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  SavedLayers layers(test::movers(2), std::move(device));
  layers.passes(3, 8);
  return layers.right();
}

TEST(MissingOrder, CopiesToTheHostAfterTheKernelThatWrites) {
  EXPECT_FALSE(right_without({Lane::to_host, Lane::compute}, Lane::compute));
}
TEST(MissingOrder, SlotIsReusedAfterItsCopyToTheHost) {
  EXPECT_FALSE(right_without({Lane::compute, Lane::to_host}, Lane::to_host));
}
TEST(MissingOrder, UseComesAfterTheCopyToTheDevice) {
  EXPECT_FALSE(right_without({Lane::compute, Lane::to_device}, Lane::to_device));
}
TEST(MissingOrder, CopiesToTheDeviceAfterKernelsThatUsedTheBlockBefore) {
  EXPECT_FALSE(right_without({Lane::to_device, Lane::compute}, Lane::compute));
}

}  // namespace
}  // namespace deltaport::offload
