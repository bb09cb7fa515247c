// SPDX-License-Identifier: Apache-2.0
// deltaport verify, as a user calls it.
#include <gtest/gtest.h>

#include "apps/call.hpp"
#include "config/support.hpp"
#include "train/small_run.hpp"

namespace deltaport::test {
namespace {

class VerifyCommand : public ::testing::Test {
 protected:
  VerifyCommand() { testing::write_small_run(folder_); }
  // The tensors of this run are small, and its groups few.
  Outcome verify(const std::string& more) const {
    return call("verify " + folder_ / "run.yaml" +
                " --offload.min_tensor_elements=1 --offload.slots=1 "
                "--offload.scopes=[gdn_core_attn,norm_out,mlp] " +
                more);
  }
  static std::string row(std::string arm, int step) {
    arm.resize(std::max<std::size_t>(arm.size(), 23), ' ');
    return concat(arm, "    ", step);
  }
  testing::Folder folder_{concat("verify-command-", ::getpid())};
};

TEST_F(VerifyCommand, EveryArmGivesTheSameBits) {
  const Outcome outcome = verify("--steps 4");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  for (const std::string& text :
       {row("eager, once more", 4), row("offload", 4), row("offload between layers", 4),
        row("graph attention", 4), row("graph layer", 4), row("graph step", 4), std::string("  graph step: "),
        row("graph attention+offload", 4), row("graph layer+offload", 4), row("graph step+offload", 4),
        std::string("  graph step+offload: "), std::string(" bytes to the host, "),
        std::string("all 9 arms give the bits of the eager run over 4 steps")})
    EXPECT_TRUE(has(outcome.text, text)) << text << "\n" << outcome.text;
  // Nothing is written.
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(VerifyCommand, TheFirstDifferenceEndsItWithOne) {
  const Outcome outcome = verify("--steps 2 --also optimizer.weight_decay=0");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "optimizer.weight_decay=0    1")) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "same       same  DIFFERS")) << outcome.text;
  EXPECT_TRUE(has(outcome.text,
                  "error: arm 'optimizer.weight_decay=0', step 1: weight 'model.embed_tokens.weight' [257, "
                  "32], element 0"))
      << outcome.text;
}

TEST_F(VerifyCommand, AnArmThatMovesNothingShowsNothing) {
  const Outcome outcome = verify("--steps 2 --offload.min_tensor_elements=1000000");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.text;
  EXPECT_TRUE(has(outcome.text,
                  "arm 'offload' moved nothing to the host and back in its last step, so it shows nothing"))
      << outcome.text;
}

TEST_F(VerifyCommand, OtherImplementationsMayBeAskedFor) {
  const Outcome outcome = verify("--steps 4 --also train.loss_chunk_tokens=1Ki --also eval.batches=1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "all 11 arms")) << outcome.text;
}

TEST_F(VerifyCommand, CapturedMixersDoNotMoveTheMlp) {
  const Outcome outcome = verify("--steps 4 --offload.scopes=[mlp]");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_FALSE(has(outcome.text, row("graph attention+offload", 1))) << outcome.text;
  EXPECT_TRUE(has(outcome.text, row("graph layer+offload", 4))) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "all 8 arms")) << outcome.text;
  EXPECT_TRUE(
      has(outcome.text, "graph attention+offload: left out, nothing would move (mlp: graph.scope attention"))
      << outcome.text;
}

TEST_F(VerifyCommand, ArmsThatCannotBeAreLeftOutAndNamed) {
  const Outcome recomputed =
      verify("--steps 3 --recompute.gdn_core_inputs=all --offload.scopes=[gdn_core_attn]");
  EXPECT_EQ(recomputed.exit_code, 0) << recomputed.text;
  EXPECT_TRUE(has(
      recomputed.text,
      "offload, offload between layers, graph attention+offload, graph layer+offload, graph step+offload: "
      "left out, nothing would move (gdn_core_attn: recompute.gdn_core_inputs = all leaves nothing of it)"))
      << recomputed.text;
  EXPECT_TRUE(has(recomputed.text, "all 4 arms")) << recomputed.text;
  const Outcome attention = verify("--steps 3 --model.layer_pattern=[attention]");
  EXPECT_EQ(attention.exit_code, 0) << attention.text;
  EXPECT_TRUE(
      has(attention.text,
          "offload, offload between layers, graph layer+offload, graph step+offload: of offload.scopes, mlp "
          "only (gdn_core_attn: the model has no gdn or gdn2 layer; norm_out: the "
          "model has no gdn or gdn2 layer)"))
      << attention.text;
  EXPECT_TRUE(has(attention.text, "graph attention+offload: left out, ")) << attention.text;
  EXPECT_TRUE(has(attention.text, "all 8 arms")) << attention.text;
}

TEST_F(VerifyCommand, ItsOwnStepsCountAsTheRuns) {
  const Outcome outcome = verify("--steps 3 --train.steps=1 --schedule.warmup=0");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "train.steps = 3 in every arm")) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "all 9 arms give the bits of the eager run over 3 steps")) << outcome.text;
}

// In an order in which an option that took all that follows would take the file.
TEST_F(VerifyCommand, AlsoTakesOneValue) {
  const Outcome precision =
      call("verify --also train.precision=bfloat16 " + folder_ / "run.yaml" + " --steps 2");
  EXPECT_EQ(precision.exit_code, 2) << precision.text;
  EXPECT_TRUE(
      has(precision.text, "arm 'train.precision=bfloat16' is in bfloat16 and the eager run in float32"))
      << precision.text;
  EXPECT_TRUE(has(call("verify --help").text, "the eager run (graph.scope none, offload off) with this"));
}

TEST_F(VerifyCommand, BadInputIsNamed) {
  const auto refused = [&](const std::string& arguments, const std::string& text) {
    const Outcome outcome = call("verify " + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments << "\n" << outcome.text;
    EXPECT_TRUE(has(outcome.text, text)) << outcome.text;
  };
  const std::string file = folder_ / "run.yaml";
  refused("", "verify needs a YAML file");
  refused(file + " --steps 0", "expected an integer >= 1");
  refused(file + " --steps 2 --graph.warmup_steps=2", "leaves arm 'graph attention' nothing to capture");
  refused(file + " --also graph.scop=layer", "graph.scope");
  refused(file + " --graph.warmup_steps=0", "'graph.warmup_steps' must be >= 1");
}

}  // namespace
}  // namespace deltaport::test
