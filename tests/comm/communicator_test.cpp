// SPDX-License-Identifier: Apache-2.0
#include "deltaport/comm/communicator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltaport {
namespace {

TEST(Communicator, DefaultIsOneRankWithoutMpi) {
  const Communicator alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_TRUE(alone.is_root());
  alone.barrier();
  EXPECT_EQ(alone.sum(2.5), 2.5);
  EXPECT_EQ(alone.broadcast(std::string("x")), "x");
  EXPECT_EQ(alone.gather("y"), std::vector<std::string>{"y"});
}

TEST(Communicator, KnowsItsPlaceOnTheNode) {
  const Communicator world = Communicator::world();
  EXPECT_LT(world.rank(), world.size());
  EXPECT_EQ(world.local_size(), world.size());  // tests run on one node
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.node().size(), world.size());
}

TEST(Communicator, BroadcastsTextOfAnyLengthFromAnyRank) {
  const Communicator world = Communicator::world();
  for (int root = 0; root < world.size(); ++root)
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{100000}}) {
      const std::string mine(length + static_cast<std::size_t>(world.rank()),
                             static_cast<char>('a' + world.rank()));
      const std::string expected(length + static_cast<std::size_t>(root), static_cast<char>('a' + root));
      EXPECT_EQ(world.broadcast(mine, root), expected);
    }
}

TEST(Communicator, GathersTextsInRankOrderOnRankZero) {
  const Communicator world = Communicator::world();
  const auto all = world.gather(std::string(static_cast<std::size_t>(world.rank()) * 70000, 'x'));
  if (!world.is_root()) {
    EXPECT_TRUE(all.empty());
    return;
  }
  ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
  for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r].size(), r * 70000);
}

/// Values whose sum depends on the order of additions.
double awkward(int rank, std::int64_t i) {
  return std::ldexp(std::sin(static_cast<double>(i) + 1.7 * rank),
                    static_cast<int>((i * 7 + rank * 13) % 40));
}

TEST(Communicator, SumsInRankOrderToTheLastBit) {
  const Communicator world = Communicator::world();
  for (const std::int64_t n : {0, 1, 3, 4096, 10001}) {
    std::vector<double> values(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = awkward(world.rank(), i);
    world.all_reduce_sum(values.data(), n);
    for (std::int64_t i = 0; i < n; ++i) {
      double expected = awkward(0, i);
      for (int r = 1; r < world.size(); ++r) expected += awkward(r, i);
      ASSERT_EQ(values[static_cast<std::size_t>(i)], expected) << i;
    }
  }
  const std::int64_t large = (std::int64_t{1} << 60) + world.rank();
  std::int64_t expected = 0;
  for (int r = 0; r < world.size(); ++r) expected += (std::int64_t{1} << 60) + r;
  EXPECT_EQ(world.sum(large), expected);
}

TEST(Communicator, MaxAndMin) {
  const Communicator world = Communicator::world();
  const int last = world.size() - 1;
  EXPECT_EQ(world.max<std::int64_t>(-world.rank()), 0);
  EXPECT_EQ(world.min<std::int64_t>(-world.rank()), -last);
  EXPECT_EQ(world.max(static_cast<double>(world.rank())), last);
  EXPECT_EQ(world.min(0.5 - world.rank()), 0.5 - last);
}

TEST(Communicator, MaxAndMinKeepNaNFromAnyRank) {
  const Communicator world = Communicator::world();
  for (int bad = 0; bad < world.size(); ++bad) {
    const double value = world.rank() == bad ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    EXPECT_TRUE(std::isnan(world.max(value)));
    EXPECT_TRUE(std::isnan(world.min(value)));
  }
}

TEST(Communicator, AllRanksThrowWhatTheLowestFailingRankSays) {
  const Communicator world = Communicator::world();
  world.check_all("");
  const int last = world.size() - 1;
  const std::string mine = world.rank() == last ? "disk full" : "";
  try {
    world.check_all(mine, ExitCode::checkpoint);
    FAIL() << "no exception";
  } catch (const CollectiveError& e) {
    EXPECT_EQ(std::string(e.what()), world.size() > 1 ? concat("rank ", last, ": disk full") : "disk full");
    EXPECT_EQ(e.exit_code(), ExitCode::checkpoint);
    EXPECT_EQ(e.speaks(), world.is_root());
  }
}

TEST(Communicator, AgreesOnTheOutcomeOfWork) {
  const Communicator world = Communicator::world();
  int runs = 0;
  world.agree([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  const auto fail_on_rank_zero = [&] {
    if (world.is_root()) throw DataError("a.bin: bad magic");
  };
  try {
    world.agree(fail_on_rank_zero);
    FAIL() << "no exception";
  } catch (const CollectiveError& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::data);
    EXPECT_NE(std::string(e.what()).find("a.bin: bad magic"), std::string::npos);
  }
  EXPECT_EQ(world.sum<std::int64_t>(1), world.size());  // still in step
}

TEST(Communicator, RejectsBadArguments) {
  const Communicator world = Communicator::world();
  char byte = 0;
  EXPECT_THROW(world.broadcast(&byte, 1, world.size()), CommError);
  EXPECT_THROW(world.broadcast(&byte, 1, -1), CommError);
  EXPECT_THROW(world.broadcast(nullptr, 1, 0), CommError);
  EXPECT_THROW(world.all_reduce_sum(static_cast<double*>(nullptr), 3), CommError);
}

}  // namespace
}  // namespace deltaport
