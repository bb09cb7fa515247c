// SPDX-License-Identifier: Apache-2.0
// Kokkos fixes its number of threads when it starts, so comparing thread counts takes one process for each.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "deltaport/core/error.hpp"

namespace deltaport::test {

/// FNV-1a of the bytes of all values.
template <class T>
std::uint64_t hash_bits(const std::vector<T>& values) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const T& value : values) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
  }
  return hash;
}

/// Prints a line that bits_with_threads() finds in the output of the disabled test `filter`.
inline void print_bits(std::uint64_t hash) {
  std::printf("BITS %016llx of %d threads\n", static_cast<unsigned long long>(hash),
              Kokkos::DefaultHostExecutionSpace().concurrency());
}

/// Runs the disabled tests that match `filter` in a new process of this executable with `threads` host
/// threads; returns its "BITS ... of" lines, and checks that it really had that many threads (an empty string
/// otherwise).
inline std::string bits_with_threads(int threads, const std::string& filter) {
  const std::string command =
      concat("OMP_NUM_THREADS=", threads, " '", std::filesystem::read_symlink("/proc/self/exe").string(),
             "' --gtest_also_run_disabled_tests '--gtest_filter=", filter, "' 2>&1");
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string bits;
  char line[256];
  while (pipe && std::fgets(line, sizeof line, pipe)) {
    unsigned long long hash = 0;
    int used = 0;
    if (std::sscanf(line, "BITS %llx of %d threads", &hash, &used) != 2) continue;
    if (used != threads && Kokkos::DefaultHostExecutionSpace::name() == std::string("OpenMP")) return {};
    bits += concat(hash, " ");
  }
  if (pipe) ::pclose(pipe);
  return bits;
}

}  // namespace deltaport::test
