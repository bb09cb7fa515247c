// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/call.hpp"
#include "config/support.hpp"

namespace deltaport::test {
namespace {

nlohmann::json table(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file).at("rows");
}

TEST(BenchRecurrence, GivesEveryRowOnceAndHoldsItAgainstReference) {
  const TemporaryDirectory folder;
  const std::string json = folder.path() + "/rows.json";
  const Outcome outcome = call(
      "bench recurrence --repeat 2 --impl auto,portable,reference --shape 1,70,2,4,24,40 --shape 2,9,1,1,8,8 "
      "--json " +
      json);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  const auto rows = table(json);
  EXPECT_EQ(rows.size(), 2u * 2u * 2u * 3u);  // shapes, kinds, directions, implementations
  for (const auto& row : rows) {
    EXPECT_TRUE(row.at("right")) << row;
    EXPECT_EQ(row.at("seconds").size(), 2u);
    EXPECT_GT(row.at("best_seconds"), 0.0);
    EXPECT_GE(row.at("median_seconds"), row.at("best_seconds"));
    EXPECT_GT(row.at("share"), 0.0);
  }
}

TEST(BenchRecurrence, HalvesAreRight) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    const Outcome outcome = call(
        std::string("bench recurrence --repeat 1 --clock cpu --qk-norm l2 --shape 1,130,1,2,32,64 --dtype ") +
        dtype);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    EXPECT_TRUE(has(outcome.text, dtype)) << outcome.text;
  }
}

TEST(BenchRecurrence, AFileThatCannotBeWrittenIsToldFirst) {
  const Outcome missing = call("bench recurrence --shape 1,2,1,1 --json nodir/x.json");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_EQ(missing.text, "deltaport: error: cannot write nodir/x.json: No such file or directory\n");
  const Outcome full = call("bench recurrence --repeat 1 --shape 1,2,1,1 --json /dev/full");
  EXPECT_EQ(full.exit_code, 1) << full.text;
  EXPECT_TRUE(has(full.text, "cannot write /dev/full: No space left")) << full.text;
}

// What keeps the same is timed once, and under the name of what it keeps.
TEST(BenchRecurrence, WhatIsKept) {
  const TemporaryDirectory folder;
  const std::string json = folder.path() + "/rows.json";
  for (const char* keep : {"inputs,preparation", "preparation,preparation", "preparation,inputs,inputs"}) {
    const Outcome outcome =
        call(concat("bench recurrence --repeat 1 --kind gdn --impl portable --shape 1,2,1,1 --keep ", keep,
                    " --json ", json));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
    const auto rows = table(json);
    ASSERT_EQ(rows.size(), 2u) << keep;
    for (const auto& row : rows) EXPECT_EQ(row.at("keeps"), "inputs");
  }
}

// The count that the figures of the documentation use.
TEST(BenchRecurrence, NominalCount) {
  const TemporaryDirectory folder;
  const std::string json = folder.path() + "/rows.json";
  ASSERT_EQ(call("bench recurrence --repeat 1 --kind gdn --shape 1,2,1,1 --json " + json).exit_code, 0);
  const auto rows = table(json);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NEAR(rows[0].at("nominal_flops").get<double>() * 1024 * 16, 5.46e9, 5e6);
  EXPECT_NEAR(rows[1].at("nominal_flops").get<double>() * 1024 * 16, 21.2e9, 2e7);
}

TEST(BenchRecurrence, WrongArgumentsAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"--shape 1,2,3", "3 numbers"},   {"--shape 1,2,3,4", "HV = 4 is not a multiple of H = 3"},
      {"--shape 1,x,1,1", "\"x\""},     {"--shape 1,0,1,1", "\"0\""},
      {"--impl host,abacus", "abacus"}, {"--kind gdn3", "gdn3"},
      {"--dtype float8", "float8"},     {"--keep outputs", "outputs"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = call(std::string("bench recurrence ") + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(has(outcome.text, expected)) << arguments << ": " << outcome.text;
  }
}

}  // namespace
}  // namespace deltaport::test
