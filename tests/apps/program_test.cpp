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
  for (const auto& [arguments, guess] :
       {std::pair("trian run.yaml", "'train'"), std::pair("bench recurence", "'recurrence'"),
        std::pair("generate x --tempurature 1", "'--temperature'"), std::pair("info --verbos", "")}) {
    const Outcome outcome = call(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_TRUE(outcome.text.starts_with("deltaport: error: ")) << outcome.text;
    EXPECT_EQ(has(outcome.text, "did you mean "), *guess != 0) << outcome.text;
    EXPECT_TRUE(has(outcome.text, guess)) << outcome.text;
    EXPECT_TRUE(has(outcome.text, " --help ")) << outcome.text;
  }
}

TEST(Program, HelpOfOptionsFitsIntoAHundredColumns) {
  for (const std::string command :
       {"", "train", "generate", "bench offload", "bench train", "verify", "export", "data prepare"}) {
    std::istringstream help(call(command + " --help").text);
    bool in_options = false;
    for (std::string line; std::getline(help, line);) {
      in_options = line == "Options:" || line == "Subcommands:" || (in_options && !line.empty());
      if (in_options) {
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
