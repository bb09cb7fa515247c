// SPDX-License-Identifier: Apache-2.0
// deltaport train, as a batch job calls it: signals while it loads, resuming, full disks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "apps/call.hpp"
#include "config/support.hpp"
#include "deltaport/checkpoint/training_state.hpp"
#include "deltaport/train/metrics.hpp"
#include "train/small_run.hpp"

namespace deltaport::test {
namespace {

class TrainCommand : public ::testing::Test {
 protected:
  TrainCommand() { testing::write_small_run(folder_); }
  Outcome train(const std::string& more) const {
    return call("train " + folder_ / "run.yaml" + " --schedule.warmup=0 --train.steps=3 " + more);
  }
  std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  testing::Folder folder_{concat("train-", ::getpid())};
};

/// Sends `signal` once `file` exists; returns the status of waitpid().
int status_after_signal(std::vector<std::string> arguments, int signal, const std::string& file) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (!std::filesystem::exists(file)) {
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ::kill(child, signal);
  ::waitpid(child, &status, 0);
  return status;
}

// The lock is the first thing that a run leaves on disk; data and model come after it.
TEST_F(TrainCommand, ASignalWhileLoadingEndsWithACheckpoint) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const std::string run = concat(folder_ / "run-", signal);
    const int status = status_after_signal(
        {DELTAPORT_EXECUTABLE, "train", folder_ / "run.yaml", "--run.dir=" + run, "--model.hidden_size=256",
         "--model.vocab_size=16384", "--train.global_batch_tokens=32"},
        signal, run + "/lock");
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 85);
    EXPECT_TRUE(find_latest(run + "/checkpoints"));
  }
}

TEST_F(TrainCommand, UnknownKeyToAllowIsBadInput) {
  const Outcome near = train("--allow-config-change train.steps,optimizer.l");
  EXPECT_EQ(near.exit_code, 2) << near.text;
  EXPECT_TRUE(has(near.text,
                  "--allow-config-change: 'optimizer.l' is no key of the configuration; did you mean "
                  "'optimizer.lr'?"));
  const Outcome far = train("--allow-config-change=nonsense");
  EXPECT_EQ(far.exit_code, 2) << far.text;
  EXPECT_TRUE(
      has(far.text, "'nonsense' is no key of the configuration; deltaport validate --help lists them"));
}

TEST_F(TrainCommand, EmptyOverrideIsNamed) {
  const Outcome outcome = train("--optimizer.lr=");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.text;
  EXPECT_TRUE(has(outcome.text, "<command line>:--optimizer.lr: error: 'optimizer.lr' must be a number"));
}

TEST_F(TrainCommand, ResumingWithoutTheCheckpointsKeepsTheMetrics) {
  ASSERT_EQ(train("").exit_code, 0);
  const std::string metrics = content("run/metrics.jsonl");
  ASSERT_TRUE(has(metrics, "{\"kind\":\"checkpoint\",\"step\":3}\n"));
  std::filesystem::rename(folder_ / "run/checkpoints", folder_ / "elsewhere");
  for (const bool emptied : {false, true}) {
    if (emptied) std::filesystem::create_directory(folder_ / "run/checkpoints");
    const Outcome refused = train("--resume");
    EXPECT_EQ(refused.exit_code, 2) << refused.text;
    EXPECT_TRUE(has(refused.text, "a checkpoint of step 3 was written, but " + folder_ / "run/checkpoints" +
                                      " holds none"));
    EXPECT_EQ(content("run/metrics.jsonl"), metrics);
  }
  std::filesystem::remove(folder_ / "run/checkpoints");
  std::filesystem::rename(folder_ / "elsewhere", folder_ / "run/checkpoints");
  EXPECT_EQ(train("--resume").exit_code, 0);
  EXPECT_EQ(content("run/metrics.jsonl"), metrics);
}

// A job that died before its first checkpoint is started again by the same command.
TEST_F(TrainCommand, ResumingBeforeTheFirstCheckpointStartsAnew) {
  std::filesystem::create_directory(folder_ / "run");
  {
    MetricsWriter writer(folder_ / "run/metrics.jsonl", {"small", "0.1.0", 10, 1, 3, 0.0});
    writer.write(StepMetrics{1, 2.5, 0.75, 0.0003, 100, 99, 100, 0.5, 1, 2});
  }
  const Outcome outcome = train("--resume");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_EQ(read_metrics(folder_ / "run/metrics.jsonl").steps.size(), 3u);
}

TEST_F(TrainCommand, AFullDiskUnderTheMetricsDoesNotEndTheRun) {
  ASSERT_TRUE(std::filesystem::is_character_file("/dev/full"));
  std::filesystem::create_directory(folder_ / "run");
  std::filesystem::create_symlink("/dev/full", folder_ / "run/metrics.jsonl");
  const Outcome outcome = train("--eval.at_start=false");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_TRUE(find_latest(folder_ / "run/checkpoints"));
  // Said once when it happens and once at the end.
  const std::string first = "warning: " + folder_ / "run/metrics.jsonl" + ": writing failed: No space left";
  const std::size_t at = outcome.text.find(first);
  ASSERT_NE(at, std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("writing failed", at + first.size()), std::string::npos) << outcome.text;
  // Three steps, the evaluation at the end, the checkpoint.
  EXPECT_TRUE(
      has(outcome.text.substr(at), "warning: 5 records are missing in " + folder_ / "run/metrics.jsonl"));
}

}  // namespace
}  // namespace deltaport::test
