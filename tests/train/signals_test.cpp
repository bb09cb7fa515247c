// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace deltaport {
namespace {

class Signals : public ::testing::Test {
 protected:
  Signals() : world_(Communicator::world()) {
    dir_ = world_.broadcast(::testing::TempDir() + "signals_" + std::to_string(getpid()));
    if (world_.is_root()) std::filesystem::create_directory(dir_);
    world_.barrier();
  }
  ~Signals() override {
    world_.barrier();
    if (world_.is_root()) std::filesystem::remove_all(dir_);
  }
  bool is_last() const { return world_.rank() == world_.size() - 1; }
  Communicator world_;
  std::string dir_;
};

TEST_F(Signals, NothingHappened) {
  SignalWatch watch(dir_);
  const Decision decision = watch.decide(world_);
  EXPECT_EQ(decision.request, Request::none);
  EXPECT_EQ(decision.cause, "");
}

TEST_F(Signals, AllRanksLearnOfASignalToOne) {
  const std::vector<std::pair<int, std::string>> stopping{
      {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}};
  for (const auto& [signal, name] : stopping) {
    SignalWatch watch(dir_);
    if (is_last()) std::raise(signal);
    const Decision decision = watch.decide(world_);
    EXPECT_EQ(decision.request, Request::checkpoint_and_stop);
    EXPECT_EQ(decision.cause, name);
    EXPECT_EQ(watch.decide(world_).request, Request::none);  // obeyed once
  }
}

TEST_F(Signals, Usr2AsksForACheckpointOnly) {
  SignalWatch watch(dir_);
  if (world_.is_root()) std::raise(SIGUSR2);
  const Decision decision = watch.decide(world_);
  EXPECT_EQ(decision.request, Request::checkpoint);
  EXPECT_EQ(decision.cause, "SIGUSR2");
}

TEST_F(Signals, StoppingWinsAndTheOtherIsNotLost) {
  SignalWatch watch(dir_);
  if (world_.is_root()) std::raise(SIGUSR2);
  if (is_last()) std::raise(SIGTERM);
  EXPECT_EQ(watch.decide(world_).request, Request::checkpoint_and_stop);
}

TEST_F(Signals, FilesAreObeyedAndRemoved) {
  for (const std::string name : {"STOP", "CHECKPOINT_NOW"}) {
    SignalWatch watch(dir_);
    const std::string path = dir_ + "/" + name;
    if (world_.is_root()) std::ofstream(path) << "";
    world_.barrier();
    const Decision decision = watch.decide(world_);
    EXPECT_EQ(decision.request, name == "STOP" ? Request::checkpoint_and_stop : Request::checkpoint);
    EXPECT_EQ(decision.cause, "file " + name);
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST_F(Signals, SignalDuringWorkIsKeptForTheNextDecision) {
  SignalWatch watch("");
  std::thread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    kill(getpid(), SIGTERM);
  });
  sender.join();
  EXPECT_EQ(watch.decide(world_).request, Request::checkpoint_and_stop);
}

TEST_F(Signals, TheHandlerMayRunOnAnyThread) {
  SignalWatch watch("");
  for (int i = 0; i < 20; ++i) {
    std::thread other([] { std::raise(SIGTERM); });  // raise signals the thread that calls it
    Decision decision;
    while (decision.request == Request::none) decision = watch.decide(world_);  // at the same time
    other.join();
    EXPECT_EQ(decision.request, Request::checkpoint_and_stop);
    EXPECT_EQ(decision.cause, "SIGTERM");
    // All ranks have sent their signal, and none that came late is left for the next turn.
    world_.barrier();
    watch.decide(world_);
  }
}

TEST_F(Signals, OneWatchAtATimeAndHandlersComeBack) {
  struct sigaction before {
  }, during{}, after{};
  sigaction(SIGTERM, nullptr, &before);
  {
    SignalWatch watch(dir_);
    sigaction(SIGTERM, nullptr, &during);
    EXPECT_THROW(SignalWatch{dir_}, Error);
  }
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  EXPECT_NE(before.sa_handler, during.sa_handler);
}

}  // namespace
}  // namespace deltaport
