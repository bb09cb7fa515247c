// SPDX-License-Identifier: Apache-2.0
// What a kept preparation takes, in every build; that `cuda` keeps as much is tested in ../conformance.
#include <gtest/gtest.h>

#include <limits>

#include "deltaport/recurrence/options.hpp"

namespace {

using namespace deltaport::recurrence;
using deltaport::Dtype;

Options keeping() {
  Options options;
  options.implementation = Implementation::cuda;
  options.keep = Keep::preparation;
  return options;
}
std::int64_t gdn(const Options& options, Dtype dtype = Dtype::bf16, std::int64_t key_dim = 128) {
  return gdn_prepared_bytes(dtype, 62 * 64, 1, 16, key_dim, 128, options);
}

TEST(PreparedBytes, CountsWhatAChunkLeaves) {
  // 64 chunks: 62 full ones, one for each sequence that may not be full, one more.
  const std::int64_t chunk_heads = 64 * 16, tokens = 64 * chunk_heads;
  EXPECT_EQ(gdn(keeping()), 664 * tokens + 4 * chunk_heads);
  EXPECT_EQ(gdn(keeping(), Dtype::f16, 96), gdn(keeping()));
  EXPECT_EQ(gdn(keeping(), Dtype::bf16, 64), gdn(keeping()) - 128 * tokens);
  EXPECT_EQ(gdn2_prepared_bytes(Dtype::bf16, 62 * 64, 1, 16, 128, 128, keeping()),
            1168 * tokens + 4 * chunk_heads);
  EXPECT_EQ(gdn_prepared_bytes(Dtype::bf16, 62 * 64, 9, 16, 128, 128, keeping()),
            gdn_prepared_bytes(Dtype::bf16, 70 * 64, 1, 16, 128, 128, keeping()));
}

TEST(PreparedBytes, IsNothingWhereNothingIsKept) {
  EXPECT_EQ(gdn(keeping(), Dtype::f32), 0);
  EXPECT_EQ(gdn(keeping(), Dtype::bf16, 136), 0);
  Options options = keeping();
  options.chunk_size = 32;
  EXPECT_EQ(gdn(options), 0);
  options = keeping();
  options.save_for_backward = false;
  EXPECT_EQ(gdn(options), 0);
  options = keeping();
  options.keep = Keep::inputs;
  EXPECT_EQ(gdn(options), 0);
  options = keeping();
  options.implementation = Implementation::portable;
  EXPECT_EQ(gdn(options), 0);
}

TEST(PreparedBytes, DoesNotOverflow) {
  const auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_GT(gdn_prepared_bytes(Dtype::bf16, most, most, most, 128, 128, keeping()), most / 2);
  EXPECT_GT(gdn2_prepared_bytes(Dtype::bf16, most, 1, 1, 64, 64, keeping()), most / 2);
}

}  // namespace
