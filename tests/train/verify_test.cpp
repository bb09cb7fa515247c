// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/verify.hpp"

#include <gtest/gtest.h>

#include "train/small_run.hpp"

namespace deltaport {
namespace {

using testing::Folder;

/// What verify() printed and how it ended.
struct Report {
  std::vector<std::string> lines;
  std::string error;
  ExitCode code = ExitCode::success;
  bool says(const std::string& text) const { return error.find(text) != std::string::npos; }
};

class VerifyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Communicator world = Communicator::world();
    folder_ = new Folder(world.broadcast(concat("verify-", ::getpid())));
    if (world.is_root()) testing::write_small_run(*folder_);
    world.barrier();
  }
  static void TearDownTestSuite() {
    Communicator::world().barrier();
    if (Communicator::world().is_root()) delete folder_;
  }
  static VerifyArm arm(const std::string& name, const std::vector<std::string>& overrides,
                       bool must_capture = false) {
    return {name, testing::small_config(*folder_, overrides).config, must_capture};
  }
  static Report report(const std::vector<VerifyArm>& arms, std::int64_t steps = 3,
                       const std::vector<std::string>& reference = {}) {
    Report result;
    try {
      verify(Communicator::world(), testing::small_config(*folder_, reference).config, arms, steps,
             [&](const std::string& line) { result.lines.push_back(line); });
    } catch (const Error& e) {
      result.error = e.what();
      result.code = e.exit_code();
    }
    return result;
  }
  static bool prints() { return Communicator::world().is_root(); }
  static Folder* folder_;
};
Folder* VerifyTest::folder_ = nullptr;

TEST_F(VerifyTest, AcceptsEqualRunsAndPrintsARowPerStep) {
  const Report equal = report({arm("again", {}), arm("captured", {"--graph.scope=layer"}, true)});
  EXPECT_EQ(equal.error, "");
  if (!prints()) {
    EXPECT_TRUE(equal.lines.empty());
    return;
  }
  ASSERT_EQ(equal.lines.size(), 1u + 3u + 3u + 1u);
  EXPECT_NE(equal.lines[1].find("again                      1  "), std::string::npos) << equal.lines[1];
  EXPECT_NE(equal.lines[6].find("captured                   3  "), std::string::npos) << equal.lines[6];
  for (std::size_t i = 1; i < 7; ++i)
    EXPECT_NE(equal.lines[i].find("same       same     same     same"), std::string::npos) << equal.lines[i];
  EXPECT_NE(equal.lines[7].find(" operations, "), std::string::npos) << equal.lines[7];
}

TEST_F(VerifyTest, NamesTensorElementAndBothValues) {
  const Report report_ = report({arm("again", {}), arm("no decay", {"--optimizer.weight_decay=0"})});
  EXPECT_EQ(report_.code, ExitCode::failure);
  EXPECT_TRUE(
      report_.says("arm 'no decay', step 1: weight 'model.embed_tokens.weight' [257, 32], element 0 differs "
                   "from the eager run: "))
      << report_.error;
  EXPECT_TRUE(report_.says(" and ")) << report_.error;
  if (prints()) {
    EXPECT_NE(report_.lines.back().find("same       same  DIFFERS"), std::string::npos)
        << report_.lines.back();
  }
}

TEST_F(VerifyTest, NamesOptimizerStatesGradientsAndScalars) {
  // Weights that do not move leave only the moments to differ.
  const std::string still = "--optimizer.lr=1e-300";
  EXPECT_TRUE(report({arm("betas", {still, "--optimizer.betas=[0.9, 0.99]"})}, 1, {still})
                  .says("step 1: optimizer exp_avg_sq of 'model."));
  // Another order of the same sum; whether products of other sizes change the loss as well is the BLAS's affair.
  const Report chunks = report({arm("chunks", {"--train.loss_chunk_tokens=8"})}, 1);
  EXPECT_TRUE(chunks.says("step 1: gradient of 'model.embed_tokens.weight' [257, 32], element ") ||
              chunks.says("step 1: the loss differs"))
      << chunks.error;
  EXPECT_TRUE(report({arm("rate", {"--optimizer.lr=0.02"})}).says("step 1: the learning rate differs"));
  EXPECT_TRUE(
      report({arm("seed", {"--run.seed=9"})}).says("step 1: the inputs differs from the eager run: hashes "));
}

TEST_F(VerifyTest, AnArmThatCapturesNothingShowsNothing) {
  const Report nothing = report({arm("not captured", {}, true)});
  EXPECT_EQ(nothing.code, ExitCode::failure);
  EXPECT_TRUE(nothing.says("arm 'not captured' captured no graph")) << nothing.error;
  const Report warm = report({arm("late", {"--graph.scope=step", "--graph.warmup_steps=3"}, true)});
  EXPECT_EQ(warm.code, ExitCode::bad_input);
  EXPECT_TRUE(warm.says("--steps 3 leaves arm 'late' nothing to capture after graph.warmup_steps = 3"))
      << warm.error;
  EXPECT_EQ(report({}, 0).code, ExitCode::bad_input);
}

VerifyArm moving(VerifyArm arm) {
  arm.must_move = true;
  return arm;
}

// The first forward moves groups of which it cannot know that they are to stay.
TEST_F(VerifyTest, WhatTheFirstForwardMovesIsNotEnough) {
  const auto with = [](const std::string& keep) {
    return std::vector<std::string>{"--offload.enabled=true", "--offload.min_tensor_elements=1",
                                    "--offload.slots=1", "--offload.scopes=[gdn_core_attn,norm_out,mlp]",
                                    keep};
  };
  EXPECT_EQ(report({moving(arm("moves", with("--offload.keep_last=1")))}).error, "");
  for (const char* scope : {"none", "layer", "step"}) {
    std::vector<std::string> stays = with("--offload.keep_last=65536");
    stays.push_back(concat("--graph.scope=", scope));
    const Report nothing = report({moving(arm("stays", stays))});
    EXPECT_EQ(nothing.code, ExitCode::failure) << scope;
    EXPECT_TRUE(nothing.says("arm 'stays' moved nothing to the host and back in its last step"))
        << nothing.error;
  }
  const Report early = report({moving(arm("early", with("--offload.keep_last=1")))}, 1);
  EXPECT_EQ(early.code, ExitCode::bad_input);
  EXPECT_TRUE(early.says("arm 'early' no step after the first")) << early.error;
}

TEST_F(VerifyTest, AnotherPrecisionIsRefused) {
  const Report other = report({arm("again", {}), arm("halves", {"--train.precision=bfloat16"})});
  EXPECT_EQ(other.code, ExitCode::bad_input);
  EXPECT_TRUE(other.says("arm 'halves' is in bfloat16 and the eager run in float32")) << other.error;
  EXPECT_TRUE(other.lines.empty());
  EXPECT_EQ(report({arm("halves", {"--train.precision=bfloat16"})}, 1, {"--train.precision=bfloat16"}).error,
            "");
}

TEST_F(VerifyTest, SaysThatARunIsNotFinite) {
  const std::string wild = "--optimizer.lr=1e30";
  const std::string steady = "--schedule.warmup=0";
  const Report report_ =
      report({arm("again", {wild, steady}), arm("third", {wild, steady})}, 3, {wild, steady});
  const Report finite = report({arm("again", {})});
  EXPECT_EQ(report_.error, "");
  if (!prints()) return;
  ASSERT_EQ(report_.lines.size(), 1u + 3u + 3u + 1u);
  EXPECT_NE(report_.lines.back().find("the run is not finite in 2 of 3 steps, first in step 2 (loss "),
            std::string::npos)
      << report_.lines.back();
  for (const std::string& line : finite.lines) EXPECT_EQ(line.find("not finite"), std::string::npos) << line;
}

}  // namespace
}  // namespace deltaport
