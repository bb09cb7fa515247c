// SPDX-License-Identifier: Apache-2.0
// Ranks with different settings: told at once, by all, where it would hang or train replicas that drift apart.
#include "train/rank_agreement.hpp"

#include <gtest/gtest.h>

#include "deltaport/config/schema.hpp"
#include "deltaport/train/trainer.hpp"
#include "train/small_run.hpp"

namespace deltaport {
namespace {

using testing::Folder;

class RankAgreementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::make_unique<Folder>(world_.broadcast(concat("rank-agreement-", ::getpid())));
    if (world_.is_root()) testing::write_small_run(*folder_);
    world_.barrier();
  }
  void TearDown() override {
    world_.barrier();
    if (world_.is_root()) std::filesystem::remove_all(folder_->str());
    world_.barrier();
  }
  bool last() const { return world_.rank() == world_.size() - 1; }
  /// The last rank's overrides are those of the others and one more.
  LoadedConfig config(const std::string& own) const {
    std::vector<std::string> overrides = {"--train.steps=2", "--schedule.warmup=0"};
    if (last() && !own.empty()) overrides.push_back(own);
    return testing::small_config(*folder_, overrides);
  }
  /// What training ends with; empty when it succeeds.
  std::string failure(const std::string& own) const {
    try {
      Runtime runtime;
      const LoadedConfig loaded = config(own);
      return Trainer(world_, runtime, loaded).run() == ExitCode::success ? "" : "stopped";
    } catch (const CollectiveError& e) {
      EXPECT_EQ(e.exit_code(), ExitCode::bad_input) << e.what();
      return e.what();
    }
  }
  Communicator world_ = Communicator::world();
  std::unique_ptr<Folder> folder_;
};

TEST_F(RankAgreementTest, DifferentSettingsAreToldByRankKeyAndValues) {
  struct Case {
    const char *own, *text;
  };
  for (const Case& c :
       {Case{"--offload.enabled=true", "offload.enabled is true here, but false on rank 0"},
        {"--train.steps=3", "train.steps is 3 here, but 2 on rank 0"},
        {"--eval.every=1", "eval.every is 1 here, but 0 on rank 0"},
        {"--optimizer.lr=0.5", "optimizer.lr is 0.5 here, but 0.01 on rank 0"},
        {"--run.dir=elsewhere", "checkpoint.dir, made of run.dir, is \"elsewhere/checkpoints\" here, but "},
        {"--data.valid=null", "data.valid is [] here, but [{path: \"\", weight"}}) {
    const std::string text = failure(c.own);
    if (world_.size() == 1) break;
    EXPECT_EQ(text.find(concat("rank ", world_.size() - 1, ": ", c.text)), 0U) << c.own << ": " << text;
    world_.barrier();
    EXPECT_FALSE(std::filesystem::exists(*folder_ / "run")) << c.own;
  }
  if (world_.size() == 1) return;
  EXPECT_NE(failure("--train.steps=3").find("DELTAPORT_TRAIN__STEPS"), std::string::npos);
}

// What each rank may choose for itself trains, and to the end.
TEST_F(RankAgreementTest, WhatOneMachineNeedsMayDiffer) {
  int run = 0;
  for (const std::string own :
       {"--offload.pinned_limit=1000000", "--graph.warmup_steps=7", "--train.loss_chunk_tokens=16",
        "--logging.every=2", "--run.name=other", "--offload.fraction=0.5", "--checkpoint.keep_last=3"}) {
    Runtime runtime;
    std::vector<std::string> overrides = {"--train.steps=1", "--schedule.warmup=0",
                                          concat("--run.dir=", *folder_ / concat("run", run++))};
    if (last()) overrides.push_back(own);
    const LoadedConfig loaded = testing::small_config(*folder_, overrides);
    EXPECT_EQ(Trainer(world_, runtime, loaded).run(), ExitCode::success) << own;
  }
}

TEST_F(RankAgreementTest, RunDirIsFreeWhereCheckpointsAreElsewhere) {
  RunConfig c = config("").config;
  c.checkpoint.dir = "checkpoints";
  c.run.dir = concat("run-of-", world_.rank());
  EXPECT_NO_THROW(train::check_same_config(world_, c));
  c.checkpoint.dir = concat("checkpoints-of-", world_.rank());
  if (world_.size() > 1) {
    EXPECT_THROW(train::check_same_config(world_, c), CollectiveError);
  }
}

TEST_F(RankAgreementTest, PathsOfDataMayDifferButNotWhatIsThere) {
  RunConfig c = config("").config;
  c.data.train[0].path = concat("/scratch-of-", world_.rank(), "/train");
  EXPECT_NO_THROW(train::check_same_config(world_, c));
  if (world_.is_root()) {
    std::filesystem::create_directory(*folder_ / "other");
    testing::write_tokens(*folder_ / "other/train", 299);
  }
  world_.barrier();
  const std::string text = failure(concat("--data.train=[{path: ", *folder_ / "other/train", "}]"));
  if (world_.size() == 1) return;
  EXPECT_EQ(text.find(concat("rank ", world_.size() - 1, ": data.train: the token files here")), 0U) << text;
}

TEST_F(RankAgreementTest, TheListHoldsKeys) {
  const auto keys = key_paths();
  for (const std::string& key : train::keys_of_one_rank())
    EXPECT_NE(std::ranges::find(keys, key), keys.end()) << key;
}

}  // namespace
}  // namespace deltaport
