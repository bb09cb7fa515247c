// SPDX-License-Identifier: Apache-2.0
// Which samples a step sees: the same for any ranks and micro-batches, across epochs, and after a resume
// anywhere.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/scratch.hpp"
#include "deltaport/data/sample_source.hpp"
#include "deltaport/data/step_plan.hpp"

namespace deltaport::test {
namespace {

using Samples = std::vector<std::vector<std::int32_t>>;

/// The samples of one step over all ranks, one by one, in any order.
Samples samples_of(const SampleSource& source, const StepPlan& plan, std::int64_t step) {
  const auto length = static_cast<std::ptrdiff_t>(source.options().seq_len);
  Samples samples;
  for (int rank = 0; rank < plan.ranks; ++rank)
    for (const MicroBatch& m : micro_batches_of(plan, rank, step)) {
      const Batch batch = source.batch(m.first, m.count);
      for (auto at = batch.tokens.begin(); at != batch.tokens.end(); at += length)
        samples.emplace_back(at, at + length);
    }
  std::sort(samples.begin(), samples.end());
  return samples;
}

std::vector<DataSource> two_sources(const Scratch& scratch) {
  std::vector<std::int32_t> even, odd;
  for (std::int32_t i = 0; i < 600; ++i) (i % 2 == 0 ? even : odd).push_back(i);
  return {{write_documents(scratch.path("even"), {even}), 2.0},
          {write_documents(scratch.path("odd"), {odd}), 1.0}};
}

TEST(SampleOrder, RanksAndMicroBatchesOnlyPartitionAStep) {
  const Scratch scratch;
  const SampleSource source(two_sources(scratch), {.seq_len = 4, .vocab_size = 600, .seed = 9});
  ASSERT_EQ(source.samples(), 148);
  constexpr std::int64_t global =
      840;  // divisible by every ranks x micro-batch below; several epochs in one step
  for (std::int64_t step = 0; step < 2; ++step) {
    const Samples expected = samples_of(source, {global, 1, 1}, step);
    ASSERT_EQ(expected.size(), 840u);
    for (const int ranks : {1, 2, 3, 4, 8})
      for (std::int64_t micro_batch = 1; micro_batch <= 8; ++micro_batch) {
        if (global % (ranks * micro_batch) != 0) continue;
        ASSERT_EQ(samples_of(source, {global, micro_batch, ranks}, step), expected)
            << ranks << " x " << micro_batch;
      }
  }
}

TEST(SampleOrder, SmallStepsAcrossTheEpochBoundary) {
  const Scratch scratch;
  const SampleSource source({two_sources(scratch)[0]}, {.seq_len = 7, .vocab_size = 600, .seed = 2});
  ASSERT_EQ(source.samples(), 42);
  Samples together;  // steps of 24: the second one has samples of both epochs
  for (std::int64_t step = 0; step < 7; ++step) {
    const Samples expected = samples_of(source, {24, 1, 1}, step);
    for (const int ranks : {2, 3, 4, 8})
      ASSERT_EQ(samples_of(source, {24, 24 / ranks, ranks}, step), expected);
    together.insert(together.end(), expected.begin(), expected.end());
  }
  std::sort(together.begin(), together.end());  // 168 samples: four epochs, each window four times
  for (std::size_t i = 0; i < together.size(); i += 4) ASSERT_EQ(together[i], together[i + 3]);
  ASSERT_NE(together[3], together[4]);
}

TEST(SampleOrder, ResumingAnywhereContinuesTheStream) {
  const Scratch scratch;
  const auto sources = two_sources(scratch);
  const SampleOptions options{.seq_len = 4, .vocab_size = 600, .seed = 4};
  const SampleSource straight(sources, options);
  std::vector<Batch> batches;
  for (std::int64_t step = 0; step < 80; ++step) batches.push_back(straight.batch(step * 6, 6));
  for (std::int64_t resume = 0; resume < 80; ++resume) {
    const SampleSource again(sources, options);  // a new process knows the step number alone
    for (std::int64_t step = resume; step < std::min<std::int64_t>(resume + 3, 80); ++step) {
      const Batch batch = again.batch(step * 6, 6);
      ASSERT_EQ(batch.tokens, batches[static_cast<std::size_t>(step)].tokens);
      ASSERT_EQ(batch.labels, batches[static_cast<std::size_t>(step)].labels);
      ASSERT_EQ(batch.cu_seqlens, batches[static_cast<std::size_t>(step)].cu_seqlens);
    }
  }
}

TEST(SampleOrder, TheOrderOfTheListDoesNotMatter) {
  const Scratch scratch;
  auto sources = two_sources(scratch);
  const SampleOptions options{.seq_len = 4, .vocab_size = 600, .seed = 4};
  const SampleSource forward(sources, options);
  std::reverse(sources.begin(), sources.end());
  const SampleSource backward(sources, options);
  EXPECT_EQ(forward.fingerprint(), backward.fingerprint());
  EXPECT_EQ(forward.batch(100, 50).tokens, backward.batch(100, 50).tokens);
}

TEST(SampleOrder, MixtureTakesTheSharesAsked) {
  const Scratch scratch;
  const SampleSource source(two_sources(scratch), {.seq_len = 4, .vocab_size = 600, .seed = 4});
  std::int64_t even = 0;
  for (std::int64_t n = 0; n < 1024; ++n) even += source.batch(n, 1).tokens[0] % 2 == 0 ? 1 : 0;
  EXPECT_EQ(even, 683);  // 1024 * 2 / 3, largest remainder
}

TEST(StepPlan, GivesContiguousSharesInRankOrder) {
  const StepPlan plan{12, 2, 3};
  EXPECT_EQ(plan.micro_batches(), 2);
  std::vector<std::int64_t> firsts;
  for (int rank = 0; rank < 3; ++rank)
    for (const MicroBatch& m : micro_batches_of(plan, rank, 5)) {
      EXPECT_EQ(m.count, 2);
      firsts.push_back(m.first);
    }
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{60, 62, 64, 66, 68, 70}));
}

TEST(StepPlan, RefusesWhatDoesNotDivide) {
  EXPECT_THROW(micro_batches_of({10, 4, 1}, 0, 0), ConfigError);
  EXPECT_THROW(micro_batches_of({8, 2, 8}, 0, 0), ConfigError);
  EXPECT_THROW(micro_batches_of({8, 0, 1}, 0, 0), ConfigError);
  EXPECT_THROW(micro_batches_of({0, 1, 1}, 0, 0), ConfigError);
  EXPECT_THROW(micro_batches_of({8, std::int64_t{1} << 62, 8}, 0, 0), ConfigError);
  EXPECT_THROW(micro_batches_of({8, 1, 2}, 2, 0), Error);
  EXPECT_THROW(micro_batches_of({8, 1, 2}, -1, 0), Error);
  EXPECT_THROW(micro_batches_of({8, 1, 2}, 0, -1), Error);
  EXPECT_THROW(micro_batches_of({8, 1, 2}, 0, std::int64_t{1} << 61), Error);
}

}  // namespace
}  // namespace deltaport::test
