// SPDX-License-Identifier: Apache-2.0
#include "recurrence/extents.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace {

using deltaport::recurrence::Extents;
using deltaport::recurrence::Span;

Extents packed(const std::vector<std::int32_t>& boundaries, std::int64_t tokens) {
  Extents x;
  x.batch = 1;
  x.tokens = tokens;
  x.sequences = static_cast<std::int64_t>(boundaries.size()) - 1;
  x.cu_seqlens = boundaries.data();
  return x;
}

// Every block of every sequence owns a slot, none shares one, all lie inside the array.
void expect_slots_apart(const Extents& x, int length) {
  std::set<std::int64_t> taken;
  for (std::int64_t n = 0; n < x.sequences; ++n) {
    const Span span = x.span(n);
    for (std::int64_t block = 0; block * length < span.end - span.begin; ++block) {
      const std::int64_t slot = x.block_slot(n, length) + block;
      EXPECT_TRUE(taken.insert(slot).second) << "sequence " << n << " block " << block;
      EXPECT_LT(slot, x.block_slots(length));
    }
  }
}

TEST(Extents, BlockSlotsOfMixedLengths) {
  std::mt19937 engine(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<std::int32_t> boundaries{0};
    for (int n = 0; n < 20; ++n) {
      const auto kind = engine() % 4;
      const auto length = static_cast<std::int32_t>(kind == 0 ? 0 : kind == 1 ? 1 : engine() % 200);
      boundaries.push_back(boundaries.back() + length);
    }
    const Extents x = packed(boundaries, boundaries.back() + 5);
    for (int length : {16, 32, 64}) expect_slots_apart(x, length);
  }
}

TEST(Extents, BlockSlotsOfABatch) {
  Extents x;
  x.batch = x.sequences = 7;
  x.tokens = 65;
  expect_slots_apart(x, 64);
  EXPECT_EQ(x.span(3).begin, 195);
  EXPECT_EQ(x.span(3).end, 260);
}

TEST(Extents, BoundariesNeverLeaveTheTensor) {
  const std::vector<std::int32_t> boundaries{-5, 3, 2, 2000000000};
  const Extents x = packed(boundaries, 10);
  EXPECT_EQ(x.span(0).begin, 0);
  EXPECT_EQ(x.span(1).end, x.span(1).begin);
  EXPECT_EQ(x.span(2).end, 10);
}

TEST(Extents, GroupsOfHeads) {
  Extents x;
  x.key_heads = 2;
  x.value_heads = x.gate_heads = 6;
  EXPECT_EQ(x.key_head(2), 0);
  EXPECT_EQ(x.key_head(3), 1);
  EXPECT_EQ(x.gate_head(5), 5);
  x.gate_heads = 2;
  EXPECT_EQ(x.gate_head(5), 1);
}

}  // namespace
