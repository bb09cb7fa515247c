// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/model_flops.hpp"

#include "model/qwen_config.hpp"
#include "model/small_lm.hpp"

namespace deltaport {
namespace {

using testing::Head;
using testing::small_lm_config;

// One layer of each kind, counted by hand.
TEST(ModelFlops, CountMatricesScoresAndChunks) {
  const double gdn = (40 + 24 + 4 + 4) * 10 + 10 * 24, gdn2 = (40 + 24 + 8 + 8 + 24) * 10 + 10 * 24;
  const double attention = (64 + 16 + 16) * 10 + 10 * 32, mlps = 3 * 3 * 14 * 10, head = 13 * 10;
  for (const Head tied : {Head::tied, Head::untied}) {
    const ModelFlops flops = training_flops_per_token(small_lm_config(tied), 9);
    EXPECT_DOUBLE_EQ(flops.products, 6 * (gdn + gdn2 + attention + mlps + head));
    // Token t sees t + 1 keys: 1 + .. + 9 = 45 of 9 x 9, so 5 each; scores and values, 8 wide, 4 heads, 3
    // passes.
    EXPECT_DOUBLE_EQ(flops.attention, 3 * (2 * 2 * 4 * 8) * 5.0);
    EXPECT_DOUBLE_EQ(flops.recurrence, 2 * 3 * 4 * (6.0 * 4 * 6 + 4 * 64 * (4 + 6) + 2 * 64 * 64 / 3.0));
    EXPECT_DOUBLE_EQ(flops.total(), flops.products + flops.attention + flops.recurrence);
  }
}

TEST(ModelFlops, OfQwenAreThoseOfItsParameters) {
  const ModelFlops flops = training_flops_per_token(testing::qwen3_5_0_8b(), 2048);
  EXPECT_NEAR(flops.products, 6 * 752.393e6, 0.003e9);  // what is no matrix has 0.4 million parameters
  EXPECT_LT(flops.products, 6 * 752'393'024.0);
  EXPECT_DOUBLE_EQ(flops.attention, 6.0 * 6 * 8 * 256 * 2049);
  // 10.66 million for 64 tokens of a head in forward.
  EXPECT_NEAR(flops.recurrence, 18.0 * 3 * 16 * 10.66e6 / 64, 1e5);
}

}  // namespace
}  // namespace deltaport
