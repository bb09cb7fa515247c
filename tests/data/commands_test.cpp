// SPDX-License-Identifier: Apache-2.0
// deltaport data, as a user calls it: exit codes, messages, and what a killed run leaves behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "apps/call.hpp"
#include "data/prepared.hpp"

namespace deltaport::test {
namespace {

TEST(DataCommands, PrepareThenInspect) {
  const Scratch scratch;
  scratch.write("in/a.txt", "hello\n");
  scratch.write("in/b.md", "world");
  const std::string out = scratch.path("out/d");
  const Outcome prepared = call("data prepare " + scratch.path("in") + " --output " + out + " --threads 2");
  EXPECT_EQ(prepared.exit_code, 0) << prepared.text;
  EXPECT_TRUE(contains(prepared.text, "2 documents, 13 tokens")) << prepared.text;
  EXPECT_EQ(documents_of(out), (std::vector<std::string>{"hello\n", "world"}));
  const Outcome inspected = call("data inspect " + out + " --verify");
  EXPECT_EQ(inspected.exit_code, 0) << inspected.text;
  EXPECT_TRUE(contains(inspected.text, "hello\\n")) << inspected.text;
  EXPECT_TRUE(contains(call("data inspect --json " + out).text, "\"documents\": 2"));
}

TEST(DataCommands, ExitCodes) {
  const Scratch scratch;
  const std::string a = scratch.write("a.txt", "text");
  const std::string to = " -o " + scratch.path("d");
  EXPECT_EQ(call("data").exit_code, 2);
  EXPECT_EQ(call("data prepare").exit_code, 2);
  EXPECT_EQ(call("data prepare " + a).exit_code, 2);
  EXPECT_EQ(call("data prepare " + a + to + " --threads 0").exit_code, 2);
  EXPECT_EQ(call("data prepare " + a + to + " --unknown").exit_code, 2);
  EXPECT_EQ(call("data prepare " + a + to + " --valid-fraction 0.1").exit_code, 2);
  EXPECT_EQ(call("data prepare " + scratch.path("none") + to).exit_code, 4);
  EXPECT_EQ(call("data prepare " + scratch.write("b.jsonl", "{}\n") + to).exit_code, 4);
  EXPECT_EQ(call("data inspect " + scratch.path("none")).exit_code, 4);
  EXPECT_EQ(call("data prepare " + a + to).exit_code, 0);
  EXPECT_EQ(call("data prepare " + a + to).exit_code, 2);  // exists
  EXPECT_EQ(call("data prepare " + a + to + " --force").exit_code, 0);
}

// A run killed at any moment leaves no data set, and the next one works.
TEST(DataCommands, AKilledRunLeavesNoDataSet) {
  const Scratch scratch;
  const std::string in = scratch.write("a.txt", std::string(std::size_t{64} << 20, 'x'));
  const std::string out = scratch.path("out/d");
  for (const int milliseconds : {5, 20, 60}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl(DELTAPORT_EXECUTABLE, DELTAPORT_EXECUTABLE, "data", "prepare", in.c_str(), "-o", out.c_str(),
              nullptr);
      ::_exit(127);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) break;  // it was quicker
    EXPECT_THROW(TokenFile{out}, DataError);
  }
  EXPECT_EQ(call("data prepare " + in + " -o " + out + " --force").exit_code, 0);
  EXPECT_EQ(TokenFile(out).tokens(), (std::int64_t{64} << 20) + 1);
}

}  // namespace
}  // namespace deltaport::test
