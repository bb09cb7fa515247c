// SPDX-License-Identifier: Apache-2.0
// deltaport data, as a user calls it: exit codes, messages, and what a killed run leaves behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "data/prepared.hpp"

namespace deltaport::test {
namespace {

struct Outcome {
  int code;
  std::string output;  // standard output and standard error
};

Outcome run(const Scratch& scratch, const std::string& arguments) {
  const std::string log = scratch.path("log");
  const std::string command =
      std::string(DELTAPORT_EXECUTABLE) + " data " + arguments + " > " + log + " 2>&1";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(log)};
}

TEST(DataCommands, PrepareThenInspect) {
  const Scratch scratch;
  scratch.write("in/a.txt", "hello\n");
  scratch.write("in/b.md", "world");
  const std::string out = scratch.path("out/d");
  const Outcome prepared =
      run(scratch, "prepare " + scratch.path("in") + " --output " + out + " --threads 2");
  EXPECT_EQ(prepared.code, 0) << prepared.output;
  EXPECT_TRUE(contains(prepared.output, "2 documents, 13 tokens")) << prepared.output;
  EXPECT_EQ(documents_of(out), (std::vector<std::string>{"hello\n", "world"}));
  const Outcome inspected = run(scratch, "inspect " + out + " --verify");
  EXPECT_EQ(inspected.code, 0) << inspected.output;
  EXPECT_TRUE(contains(inspected.output, "hello\\n")) << inspected.output;
  EXPECT_TRUE(contains(run(scratch, "inspect --json " + out).output, "\"documents\": 2"));
}

TEST(DataCommands, ExitCodes) {
  const Scratch scratch;
  const std::string a = scratch.write("a.txt", "text");
  const std::string to = " -o " + scratch.path("d");
  EXPECT_EQ(run(scratch, "").code, 2);
  EXPECT_EQ(run(scratch, "prepare").code, 2);
  EXPECT_EQ(run(scratch, "prepare " + a).code, 2);
  EXPECT_EQ(run(scratch, "prepare " + a + to + " --threads 0").code, 2);
  EXPECT_EQ(run(scratch, "prepare " + a + to + " --unknown").code, 2);
  EXPECT_EQ(run(scratch, "prepare " + a + to + " --valid-fraction 0.1").code, 2);
  EXPECT_EQ(run(scratch, "prepare " + scratch.path("none") + to).code, 4);
  EXPECT_EQ(run(scratch, "prepare " + scratch.write("b.jsonl", "{}\n") + to).code, 4);
  EXPECT_EQ(run(scratch, "inspect " + scratch.path("none")).code, 4);
  EXPECT_EQ(run(scratch, "prepare " + a + to).code, 0);
  EXPECT_EQ(run(scratch, "prepare " + a + to).code, 2);  // exists
  EXPECT_EQ(run(scratch, "prepare " + a + to + " --force").code, 0);
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
  EXPECT_EQ(run(scratch, "prepare " + in + " -o " + out + " --force").code, 0);
  EXPECT_EQ(TokenFile(out).tokens(), (std::int64_t{64} << 20) + 1);
}

}  // namespace
}  // namespace deltaport::test
