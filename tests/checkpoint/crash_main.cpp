// SPDX-License-Identifier: Apache-2.0
// Without Kokkos: these tests fork, which a process with worker threads must not.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
