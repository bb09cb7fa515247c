// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/batch_hash.hpp"

#include <gtest/gtest.h>

#include <set>

namespace deltaport {
namespace {

Batch batch() {
  Batch b;
  b.tokens = {1, 2, 3, 4};
  b.labels = {2, 3, 4, ignored_label};
  b.cu_seqlens = {0, 2, 4};
  return b;
}

TEST(BatchHash, DependsOnEveryValueOnTheOrderAndOnWhatCameBefore) {
  EXPECT_EQ(batch_hash(batch()), batch_hash(batch()));
  std::set<std::uint64_t> hashes = {batch_hash(batch()), batch_hash(batch(), 1)};
  Batch b = batch();
  b.tokens[3] = 5;
  hashes.insert(batch_hash(b));
  b = batch();
  b.labels[0] = 3;
  hashes.insert(batch_hash(b));
  b = batch();
  b.cu_seqlens[1] = 3;
  hashes.insert(batch_hash(b));
  b = batch();
  std::swap(b.tokens[0], b.tokens[1]);
  hashes.insert(batch_hash(b));
  b = batch();  // the same numbers in a row, cut elsewhere
  b.labels.insert(b.labels.begin(), b.tokens.back());
  b.tokens.pop_back();
  hashes.insert(batch_hash(b));
  EXPECT_EQ(hashes.size(), 7u);
}

}  // namespace
}  // namespace deltaport
