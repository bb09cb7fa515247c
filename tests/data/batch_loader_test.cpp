// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/batch_loader.hpp"

#include <gtest/gtest.h>

#include "data/scratch.hpp"

namespace deltaport::test {
namespace {

class BatchLoaderTest : public ::testing::Test {
 protected:
  SampleSource source(std::int64_t vocab_size = 257) const {
    write_documents(scratch_.path("a"), numbered_documents({50, 300, 3, 147}));
    return SampleSource({{scratch_.path("a"), 1.0}}, {.seq_len = 8, .vocab_size = vocab_size, .seed = 3});
  }
  Scratch scratch_;
};

TEST_F(BatchLoaderTest, GivesWhatThePlanSays) {
  const SampleSource samples = source();
  const StepPlan plan{12, 2, 3};
  for (int rank = 0; rank < 3; ++rank) {
    BatchLoader loader(samples, plan, rank, 7);
    for (std::int64_t step = 7; step < 20; ++step)
      for (const MicroBatch& m : micro_batches_of(plan, rank, step)) {
        const Batch batch = loader.next();
        ASSERT_EQ(batch.first, m.first);
        ASSERT_EQ(batch.tokens, samples.batch(m.first, m.count).tokens);
      }
  }
}

TEST_F(BatchLoaderTest, StopsAtAnyTime) {
  const SampleSource samples = source();
  for (int taken = 0; taken < 6; ++taken)
    for (int depth = 1; depth <= 3; ++depth) {
      BatchLoader loader(samples, {4, 2, 1}, 0, 0, depth);
      for (int i = 0; i < taken; ++i) loader.next();
    }
}

TEST_F(BatchLoaderTest, HandsOnErrors) {
  const SampleSource samples = source(200);  // the data have ids up to 250
  BatchLoader loader(samples, {2, 2, 1}, 0, 0);
  const auto drain = [&] {
    for (int i = 0; i < 1000; ++i) loader.next();
  };
  EXPECT_TRUE(contains(error_of(drain), "a.bin: token "));
  EXPECT_THROW(loader.next(), DataError);
}

TEST_F(BatchLoaderTest, RefusesBadPlansAtOnce) {
  const SampleSource samples = source();
  EXPECT_THROW(BatchLoader(samples, {5, 2, 1}, 0, 0), ConfigError);
  EXPECT_THROW(BatchLoader(samples, {4, 2, 1}, 1, 0), Error);
  EXPECT_THROW(BatchLoader(samples, {4, 2, 1}, 0, 0, 0), ConfigError);
}

}  // namespace
}  // namespace deltaport::test
