// SPDX-License-Identifier: Apache-2.0
// What holds for every subcommand: unknown names, output that cannot be written.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "apps/call.hpp"
#include "config/support.hpp"

namespace deltaport::test {
namespace {

TEST(Program, UnknownSubcommandIsBadInput) {
  for (const std::string arguments : {"tran run.yaml", "Train", "tran --help"}) {
    const Outcome outcome = call(arguments);
    const std::string word = arguments.substr(0, arguments.find(' '));
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(has(outcome.text, "deltaport: error: unknown subcommand '" + word + "'"));
    EXPECT_TRUE(has(outcome.text, "deltaport --help"));
  }
  EXPECT_EQ(call("").exit_code, 2);
}

TEST(Program, UnknownSubcommandBelowAnotherIsNamed) {
  for (const auto& [arguments, parent] : {std::pair("data tran", "data"), std::pair("op gdn3 --in x", "op"),
                                          std::pair("bench gemm --help", "bench")}) {
    const Outcome outcome = call(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(has(outcome.text, "unknown subcommand '")) << outcome.text;
    EXPECT_TRUE(has(outcome.text, std::string("deltaport ") + parent + " --help lists them")) << outcome.text;
  }
}

TEST(Program, NearNamesAreSuggested) {
  const std::pair<const char*, const char*> cases[] = {
      {"trian run.yaml", "unknown subcommand 'trian'; did you mean 'train'?"},
      {"bench recurence", "unknown subcommand 'recurence'; did you mean 'recurrence'?"},
      {"--versoin", "unknown option '--versoin'; did you mean '--version'?"},
      {"generate x --tempurature 1", "unknown option '--tempurature'; did you mean '--temperature'?"},
      {"generate x --tok=3", "unknown option '--tok'; did you mean '--tokens'?"},
      {"export x --ouput y",
       "unknown option '--ouput'; did you mean '--output'?"},  // not: --output is required
      {"train run.yaml --resum", "unknown option '--resum'; did you mean '--resume'?"},
      {"verify run.yaml --step 6", "unknown option '--step'; did you mean '--steps'?"},
      {"plan run.yaml --rank=4", "unknown option '--rank'; did you mean '--ranks'?"},
      {"info --verbos", "unknown option '--verbos'\n"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = call(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(outcome.text.starts_with(std::string("deltaport: error: ") + message)) << outcome.text;
  }
}

TEST(Program, ValuesThatLookLikeOptionsAreNotTakenForUnknownOnes) {
  const Outcome outcome = call("generate x --prompt --nothing --tokens 0");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.text, "--tokens: Value 0")) << outcome.text;
}

TEST(Program, AllowedChangesLeaveTheFileAlone) {
  const Outcome outcome = call("train --allow-config-change train.steps nowhere.yaml");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.text, "nowhere.yaml: error: no such file")) << outcome.text;
}

TEST(Program, NumbersBeyondTheirTypeAreRefused) {
  const Outcome seed = call("generate x --seed 18446744073709551616");
  EXPECT_EQ(seed.exit_code, 2);
  EXPECT_TRUE(has(seed.text, "--seed: expected an integer >= 0 and <= 18446744073709551615, found"))
      << seed.text;
  const Outcome memory = call("plan x --memory-gib nan");
  EXPECT_EQ(memory.exit_code, 2);
  EXPECT_TRUE(has(memory.text, "--memory-gib: expected a number from 0.001 to 1e9, found 'nan'"))
      << memory.text;
}

TEST(Program, HelpFitsIntoAHundredColumns) {
  for (const std::string command :
       {"", "train", "generate", "bench offload", "bench train", "verify", "export", "data prepare"}) {
    std::istringstream help(call(command + " --help").text);
    for (std::string line; std::getline(help, line);) {
      // The usage names the program as it was called.
      if (!line.starts_with("Usage: ")) {
        EXPECT_LE(line.size(), 100u) << command << ": " << line;
      }
    }
  }
}

TEST(Program, SamplingOutOfRangeIsRefusedBeforeAnyText) {
  for (const std::string arguments :
       {"--temperature -1", "--temperature nan", "--top-p 0", "--top-p 1.5", "--top-k -1"}) {
    const Outcome outcome = call("generate x " + arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(has(outcome.text, arguments.substr(0, arguments.find(' ')) + ": expected a")) << outcome.text;
  }
}

TEST(Program, NumbersOutOfRangeAreRefusedInOneShortLine) {
  for (const std::string arguments : {"data prepare x -o y --threads 0", "data inspect x --documents -1",
                                      "data prepare x -o y --max-document-bytes 0", "generate x --seed -1",
                                      "bench recurrence --repeat 0", "bench recurrence --repeat many"}) {
    const Outcome outcome = call(arguments);
    const std::string option = arguments.substr(arguments.find("--"));
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(has(outcome.text, option.substr(0, option.find(' ')) + ": expected an integer >= "))
        << outcome.text;
    EXPECT_LT(outcome.text.size(), 150u) << outcome.text;
  }
}

// The sanitizers' operator new does not throw: it reports and ends the program itself.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Program, LackOfMemoryIsToldInWords) {
  // More than any address space holds.
  const Outcome outcome = call("bench recurrence --repeat 1 --shape 20000,2000000000,64,64");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(has(outcome.text, "deltaport: error: out of memory")) << outcome.text;
}
#endif

TEST(Program, OutputThatCannotBeWrittenIsAFailure) {
  ASSERT_TRUE(std::filesystem::is_character_file("/dev/full"));
  for (const std::string arguments : {"schema", "--help", "--version", "validate --help"}) {
    EXPECT_EQ(call(arguments + " >/dev/null").exit_code, 0) << arguments;
    const Outcome outcome = call(arguments + " >/dev/full");
    EXPECT_EQ(outcome.exit_code, 1) << arguments;
    EXPECT_TRUE(has(outcome.text, "standard output could not be written"));
  }
  // The first failure decides the exit code.
  EXPECT_EQ(call("validate missing.yaml >/dev/full").exit_code, 2);
}

}  // namespace
}  // namespace deltaport::test
