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
                           "which the arms set", "Exit code 1 when the losses differ", "--section.key=value"})
    EXPECT_NE(help.text.find(part), std::string::npos) << part << " in " << help.text;
  EXPECT_EQ(help.text.find("--arm"), std::string::npos);
}

TEST_F(BenchOffload, NothingMovedIsAFailure) {
  const Outcome outcome = bench("");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.text.find("offload moved nothing (offload moves nothing: no tensor in its scopes has "
                              "offload.min_tensor_elements = 1048576 elements)"),
            std::string::npos)
      << outcome.text;
  // Known after the first pair, which no table follows.
  EXPECT_EQ(outcome.text.find("allocated peak"), std::string::npos) << outcome.text;
}

constexpr const char* moving =
    " --offload.min_tensor_elements=1 --offload.scopes=[gdn_core_attn,norm_out,attn_core,mlp] ";

TEST_F(BenchOffload, TheCaptureIsOverBeforeTheMeasuredSteps) {
  const Outcome outcome = bench(std::string(moving) + "--graph.scope=step --graph.warmup_steps=5 --json " +
                                folder_ / "rows.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("capture timed apart"), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("measured steps"), std::string::npos) << outcome.text;
  std::ifstream file(folder_ / "rows.json");
  const auto pair = nlohmann::json::parse(file).at("pairs").at(0);
  for (const char* arm : {"off", "on"}) {
    EXPECT_EQ(pair.at(arm).at("warmup_steps"), 8) << arm;
    EXPECT_GT(pair[arm].at("capture_seconds"), 0.0) << arm;
    EXPECT_EQ(pair[arm].at("captured_steps"), 0) << arm;
    EXPECT_EQ(pair[arm].at("eager_steps"), 0) << arm;
  }
}

TEST_F(BenchOffload, SaysWhatRanEagerly) {
  // The documents of this run come in several shapes.
  const Outcome outcome =
      bench(std::string(moving) + "--graph.scope=layer --graph.max_shapes=1 --graph.on_failure=eager");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  for (const char* arm : {"offload off", "offload on"})
    EXPECT_NE(outcome.text.find(concat(arm, ": graph.max_shapes = 1 is reached")), std::string::npos)
        << outcome.text;
}

TEST_F(BenchOffload, AFileThatCannotBeWrittenIsToldFirst) {
  const Outcome missing = bench("--json " + folder_ / "nodir/x.json");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.text.find("cannot write " + folder_ / "nodir/x.json" + ": No such file"),
            std::string::npos)
      << missing.text;
  EXPECT_EQ(missing.text.find("moved nothing"), std::string::npos) << missing.text;  // no arm ran
  const Outcome full = bench(std::string(moving) + "--json /dev/full");
  EXPECT_EQ(full.exit_code, 1) << full.text;
  EXPECT_NE(full.text.find("cannot write /dev/full: No space left"), std::string::npos) << full.text;
  // A run that fails leaves what was there, and makes no empty file.
  ASSERT_EQ(shell("echo kept > " + folder_ / "kept.json").exit_code, 0);
  EXPECT_EQ(bench("--json " + folder_ / "kept.json").exit_code, 2);
  EXPECT_EQ(shell("cat " + folder_ / "kept.json").text, "kept\n");
  EXPECT_EQ(bench("--json " + folder_ / "new.json").exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new.json"));
}

// The arms' own messages go to a file: a pipe would stay open as long as one that is left behind.
TEST_F(BenchOffload, ASignalEndsTheArmsToo) {
  const std::string start = "export TMPDIR=" + folder_ / "tmp" +
                            "; mkdir -p $TMPDIR; arms() { grep -lsa \"arm-outpu[t]=$TMPDIR\" "
                            "/proc/[0-9]*/cmdline; }; " DELTAPORT_EXECUTABLE " bench offload " +
                            folder_ / "run.yaml" + " --warmup 1 --steps 100000000 > " + folder_ / "log" +
                            " 2>&1 & p=$!; " +
                            "for i in $(seq 300); do [ -n \"$(arms)\" ] && break; sleep 0.1; done; [ -n "
                            "\"$(arms)\" ] && echo began; ";
  const std::string end =
      "wait $p 2>/dev/null; echo code $?; for i in $(seq 100); do [ -z \"$(arms)\" ] && break; sleep 0.1; "
      "done; "
      "for a in $(arms); do echo left $a; kill -9 $(echo $a | tr -dc 0-9); done; ";
  EXPECT_EQ(shell(start + "kill -TERM $p; " + end + "ls $TMPDIR | grep deltaport-bench").text,
            "began\ncode 143\n");
  EXPECT_EQ(shell(start + "kill -KILL $p; " + end).text, "began\ncode 137\n");
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
