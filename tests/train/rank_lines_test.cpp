// SPDX-License-Identifier: Apache-2.0
#include "train/rank_lines.hpp"

#include <gtest/gtest.h>

namespace deltaport::train {
namespace {

using Lines = std::vector<std::string>;

TEST(RankLines, SayWhoUnlessAllDo) {
  const Communicator world = Communicator::world();
  const int last = world.size() - 1;
  Lines mine = {"all say this"};
  if (world.rank() == last) mine = {"two\nlines", "all say this", "two\nlines"};
  const Lines got = lines_of_ranks(world, mine);
  if (!world.is_root()) {
    EXPECT_TRUE(got.empty());
    return;
  }
  EXPECT_EQ(got, world.size() == 1 ? (Lines{"two\nlines", "all say this"})
                                   : (Lines{"all say this", concat("rank ", last, ": two\nlines")}));
}

TEST(RankLines, SeveralRanksAreListed) {
  const Communicator world = Communicator::world();
  const Lines got = lines_of_ranks(world, world.is_root() ? Lines{} : Lines{"others"});
  if (!world.is_root()) return;
  const Lines expected[] = {{}, {"rank 1: others"}, {"ranks 1, 2: others"}};
  ASSERT_LE(world.size(), 3);
  EXPECT_EQ(got, expected[world.size() - 1]);
}

}  // namespace
}  // namespace deltaport::train
