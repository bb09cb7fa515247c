// SPDX-License-Identifier: Apache-2.0
#include "deltaport/config/suggest.hpp"

#include <gtest/gtest.h>

namespace deltaport::config {
namespace {

TEST(EditDistance, CountsTheFourEdits) {
  EXPECT_EQ(edit_distance("steps", "steps"), 0u);
  EXPECT_EQ(edit_distance("steps", "step"), 1u);
  EXPECT_EQ(edit_distance("steps", "stepss"), 1u);
  EXPECT_EQ(edit_distance("steps", "stebs"), 1u);
  EXPECT_EQ(edit_distance("steps", "stpes"), 1u);  // a swap is one edit
  EXPECT_EQ(edit_distance("weight_decay", "weight_deacy"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Nearest, StopsAtTwoEdits) {
  const std::vector<std::string> words = {"steps", "micro_batch", "lr"};
  EXPECT_EQ(nearest("stpes", words), "steps");
  EXPECT_EQ(nearest("microbatch", words), "micro_batch");
  EXPECT_EQ(nearest("micobach", words), "");
  EXPECT_EQ(nearest("l", words), "lr");
  EXPECT_EQ(nearest("dir", words), "");  // two edits are too many for a word of two letters
  EXPECT_EQ(nearest("", words), "");
}

TEST(Nearest, ABeginningStandsForTheShortestThatGoesOn) {
  const std::vector<std::string> words = {"gdn_preparations", "gdn_preparation", "gdn_norm_out"};
  EXPECT_EQ(nearest("gdn_prep", words), "gdn_preparation");
  EXPECT_EQ(nearest("gdn", words), "");
  EXPECT_EQ(nearest("gdn_prop", words), "");
}

}  // namespace
}  // namespace deltaport::config
