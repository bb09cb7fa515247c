// SPDX-License-Identifier: Apache-2.0
// What holds for every subcommand: unknown names, output that cannot be written.
#include <gtest/gtest.h>

#include <filesystem>

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
  EXPECT_EQ(call("data tran").exit_code, 2);
}

TEST(Program, OutputThatCannotBeWrittenIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
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
