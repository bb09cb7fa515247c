// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/call.hpp"
#include "config/support.hpp"
#include "train/small_run.hpp"

namespace deltaport::test {
namespace {

class BenchTrain : public ::testing::Test {
 protected:
  BenchTrain() { testing::write_small_run(folder_); }
  Outcome bench(const std::string& more) const {
    return call("bench train " + folder_ / "run.yaml" + " --warmup 1 --steps 2 --json " +
                folder_ / "out.json" + " " + more);
  }
  nlohmann::json figures() const {
    std::ifstream file(folder_ / "out.json");
    return nlohmann::json::parse(file);
  }
  testing::Folder folder_{concat("bench-train-", ::getpid())};
};

TEST_F(BenchTrain, HoldsTheModelsFlopsAgainstAMeasuredPeak) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = bench("");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  const auto json = figures();
  const double total = json.at("model_flops").at("total");
  EXPECT_DOUBLE_EQ(total, json["model_flops"].at("products").get<double>() +
                              json["model_flops"].at("attention").get<double>() +
                              json["model_flops"].at("recurrence").get<double>());
  // The layers' matrices: rows x columns of the small run's, times 6 and the tokens of a step.
  const double tokens = json.at("tokens_per_step");
  const double matrices = (128 + 64 + 4 + 4) * 32 + 64 * 32           // gdn
                          + (128 + 64 + 32 + 32 + 64) * 32 + 64 * 32  // gdn2
                          + (64 + 16 + 16) * 32 + 32 * 32             // attention
                          + 3 * 3 * 64 * 32 + 257 * 32;
  EXPECT_DOUBLE_EQ(json["model_flops"]["products"], 6 * matrices * tokens);
  EXPECT_GT(json.at("peak_flops"), 1e8);
  EXPECT_TRUE(has(json.at("peak_source"), "in this run")) << outcome.text;
  EXPECT_NEAR(
      json.at("mfu").get<double>() * json["peak_flops"].get<double>() * json.at("step_seconds").get<double>(),
      total, 1e-6 * total);
  // The process began within the call; its clock counts in steps of 10 ms.
  EXPECT_GT(json.at("first_step_seconds"), 0.0);
  EXPECT_LE(json["first_step_seconds"].get<double>(), seconds + 0.02);
  EXPECT_GT(json.at("allocated_peak_bytes"), 100000);
  EXPECT_GE(json.at("reserved_peak_bytes"), json.at("allocated_peak_bytes"));
  // What sums up comes last.
  const std::size_t work = outcome.text.find("\n  work "), step = outcome.text.find("\n  step  ");
  ASSERT_TRUE(work != std::string::npos && step != std::string::npos) << outcome.text;
  EXPECT_LT(work, step);
  for (const char* label : {"model FLOPs", "utilisation (MFU)", "time to first step", "memory at most"})
    EXPECT_GT(outcome.text.find(concat("\n  ", label), step), step) << label << outcome.text;
  EXPECT_TRUE(has(outcome.text, "random weights"));
}

TEST_F(BenchTrain, AFileThatCannotBeWrittenIsToldFirst) {
  const std::string run = "bench train " + folder_ / "run.yaml" + " --warmup 0 --steps 1 --json ";
  const Outcome missing = call(run + "nodir/x.json");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(has(missing.text, "cannot write nodir/x.json: No such file")) << missing.text;
  EXPECT_FALSE(has(missing.text, "time to first step")) << missing.text;
  const Outcome full = call(run + "/dev/full");
  EXPECT_EQ(full.exit_code, 1) << full.text;
  EXPECT_TRUE(has(full.text, "cannot write /dev/full: No space left")) << full.text;
}

TEST_F(BenchTrain, TakesAGivenPeak) {
  const Outcome outcome = bench("--peak-tflops 2.5");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "% of 2.5 TFLOP/s (--peak-tflops)")) << outcome.text;
  EXPECT_DOUBLE_EQ(figures().at("peak_flops"), 2.5e12);
  EXPECT_EQ(figures().at("peak_source"), "--peak-tflops");
  for (const char* wrong : {"0", "-1", "fast", "nan", "inf"}) {
    const Outcome refused = bench(concat("--peak-tflops=", wrong));
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_TRUE(has(refused.text, "--peak-tflops") && has(refused.text, "> 0")) << refused.text;
  }
  const Outcome help = call("bench train --help");
  EXPECT_TRUE(has(help.text, "6 heads head_dim (seq_len + 1)")) << help.text;
  EXPECT_TRUE(has(help.text, "--section.key=value")) << help.text;
}

}  // namespace
}  // namespace deltaport::test
