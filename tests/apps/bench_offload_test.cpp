// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/call.hpp"
#include "train/small_run.hpp"

namespace deltaport::test {
namespace {

class BenchOffload : public ::testing::Test {
 protected:
  BenchOffload() { testing::write_small_run(folder_); }
  Outcome bench(const std::string& more) const {
    return call("bench offload " + folder_ / "run.yaml" +
                " --pairs 2 --warmup 1 --steps 2 --model.num_hidden_layers=6 --offload.slots=1 " + more);
  }
  testing::Folder folder_{concat("bench-offload-", ::getpid())};
};

TEST_F(BenchOffload, ComparesMemoryTimeAndBits) {
  const Outcome outcome = bench(
      "--offload.min_tensor_elements=1 --offload.scopes=[gdn_core_attn,norm_out,attn_core,mlp] --json " +
      folder_ / "rows.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  for (const char* part : {"allocated peak", "reserved peak", "of 2 pairs", "the same bits", "peak with:"})
    EXPECT_NE(outcome.text.find(part), std::string::npos) << part << " in " << outcome.text;
  std::ifstream file(folder_ / "rows.json");
  const auto pairs = nlohmann::json::parse(file).at("pairs");
  ASSERT_EQ(pairs.size(), 2U);
  for (const auto& pair : pairs) {
    EXPECT_TRUE(pair.at("same_bits"));
    EXPECT_FALSE(pair.at("off").at("on"));
    EXPECT_TRUE(pair.at("on").at("on"));
    EXPECT_EQ(pair.at("off").at("to_host_bytes"), 0);
    EXPECT_GT(pair.at("on").at("to_host_bytes"), 0);
    EXPECT_LT(pair.at("on").at("allocated_bytes"), pair.at("off").at("allocated_bytes"));
    EXPECT_EQ(pair.at("on").at("step_seconds").size(), 2U);
  }
}

TEST_F(BenchOffload, HelpTellsWhatEachOptionDoes) {
  const Outcome help = call("bench offload --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* part : {"two fresh processes", "fills the pinned pool", "every pair's figures",
                           "offload.enabled", "Exit code 1 when the losses differ", "--section.key=value"})
    EXPECT_NE(help.text.find(part), std::string::npos) << part << " in " << help.text;
  EXPECT_EQ(help.text.find("--arm"), std::string::npos);
}

TEST_F(BenchOffload, NothingMovedIsAFailure) {
  const Outcome outcome = bench("");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.text.find("offload moved nothing"), std::string::npos) << outcome.text;
}

TEST_F(BenchOffload, MistakesAreToldOnce) {
  const Outcome outcome = bench("--offload.fraction=2");
  EXPECT_NE(outcome.exit_code, 0);
  const auto first = outcome.text.find("offload.fraction");
  ASSERT_NE(first, std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("must be >= 0 and <= 1", outcome.text.find("must be >= 0 and <= 1") + 1),
            std::string::npos)
      << outcome.text;
}

}  // namespace
}  // namespace deltaport::test
