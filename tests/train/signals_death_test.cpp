// SPDX-License-Identifier: Apache-2.0
// Apart from the other tests of signals, for it forks, and MPI starts threads.
#include <gtest/gtest.h>

#include <csignal>

#include "deltaport/train/signals.hpp"

namespace deltaport {
namespace {

TEST(SignalsDeath, SecondInterruptEndsAtOnce) {
  const auto interrupt_twice = [] {
    SignalWatch watch("");
    std::raise(SIGINT);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(interrupt_twice(), ::testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace deltaport
