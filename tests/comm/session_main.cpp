// SPDX-License-Identifier: Apache-2.0
// The common main of tests that run on several ranks: one session around all tests.
#include <gtest/gtest.h>

#include "deltaport/comm/session.hpp"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
static void __lsan_disable() {}
static void __lsan_enable() {}
static void __lsan_do_leak_check() {}
#endif

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // What MPI keeps is its own affair. Leaks are looked for before it ends, because it unloads its modules
  // then, and suppressions that name them would no longer match.
  __lsan_disable();
  return deltaport::run_session(argc, argv, {}, [](deltaport::Session& session) {
    __lsan_enable();
    // A rank that fails fails the test for all.
    const auto result = static_cast<int>(session.world().max<std::int64_t>(RUN_ALL_TESTS()));
    __lsan_do_leak_check();
    return result;
  });
}
