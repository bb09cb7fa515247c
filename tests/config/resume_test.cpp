// SPDX-License-Identifier: Apache-2.0
// What may change between a run and its continuation.
#include <set>

#include "deltaport/config/checks.hpp"
#include "support.hpp"

namespace deltaport::test {
namespace {

std::set<std::string> differing(const std::vector<std::string>& overrides) {
  std::set<std::string> paths;
  const RunConfig before = load_arguments({"--data.train=[{path: a}]", "--data.valid=[{path: v}]"}).config;
  std::vector<std::string> all = {"--data.train=[{path: a}]", "--data.valid=[{path: v}]"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  for (const IdentityDifference& d : identity_differences(before, load_arguments(all).config))
    paths.insert(d.path);
  return paths;
}

TEST(Resume, IdentityKeysAreReported) {
  using Paths = std::set<std::string>;
  EXPECT_EQ(differing({}), Paths{});
  EXPECT_EQ(differing({"--train.steps=200"}), Paths{"train.steps"});  // it would bend the schedule
  EXPECT_EQ(differing({"--run.seed=1"}), Paths{"run.seed"});
  EXPECT_EQ(differing({"--train.precision=bfloat16"}), Paths{"train.precision"});
  EXPECT_EQ(differing({"--data.train=[{path: b}]"}), Paths{"data.train"});
  EXPECT_EQ(differing({"--data.train=[{path: a, weight: 2}]"}), Paths{"data.train"});
  EXPECT_EQ(differing({"--optimizer.betas=[0.9, 0.99]"}), Paths{"optimizer.betas"});
  EXPECT_EQ(differing({"--model.layer_pattern=[gdn]", "--optimizer.lr=1"}),
            (Paths{"model.layer_pattern", "optimizer.lr"}));
  EXPECT_EQ(differing({"--train.global_batch_tokens=16384", "--schedule.warmup=3", "--model.vocab_size=300"}),
            (Paths{"train.global_batch_tokens", "schedule.warmup", "model.vocab_size"}));
}

TEST(Resume, PlacementKeysAreFree) {
  EXPECT_TRUE(
      differing({"--train.micro_batch=2", "--logging.every=7", "--eval.batches=3", "--checkpoint.every=9",
                 "--checkpoint.resume=auto", "--recurrence.implementation=reference", "--run.dir=elsewhere",
                 "--run.name=other", "--train.loss_chunk_tokens=64", "--model.linear.chunk_size=16",
                 "--data.valid=[{path: w}]"})
          .empty());
}

TEST(Resume, DifferencesShowBothValues) {
  RunConfig before, after;
  after.train.steps = 300;
  const auto differences = identity_differences(before, after);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].path, "train.steps");
  EXPECT_EQ(differences[0].before, "100");
  EXPECT_EQ(differences[0].after, "300");
}

}  // namespace
}  // namespace deltaport::test
