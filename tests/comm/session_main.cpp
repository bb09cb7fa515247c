// SPDX-License-Identifier: Apache-2.0
// The common main of tests that run on several ranks: one session around all tests.
#include <gtest/gtest.h>

#include "deltaport/comm/session.hpp"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return deltaport::run_session(argc, argv, {}, [](deltaport::Session& session) {
    // A rank that fails fails the test for all.
    return static_cast<int>(session.world().max<std::int64_t>(RUN_ALL_TESTS()));
  });
}
