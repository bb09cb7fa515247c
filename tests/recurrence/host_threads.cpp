// SPDX-License-Identifier: Apache-2.0
// Prints a hash over the bits of all results, for threads.cmake to compare between thread counts. There are
// fewer heads than threads but for the smallest count, so that one task becomes one per slice of value channels.
#include <cstdio>
#include <cstring>

#include "conformance/harness.hpp"

int main() {
  using namespace deltaport;
  using namespace deltaport::conformance;
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  recurrence::Options options;
  options.implementation = recurrence::Implementation::host;
  if (!recurrence::available(options.implementation)) {
    std::printf("not in this build\n");
    return 0;
  }
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (int heads : {1, 2, 4}) {
      const auto problem = random_problem(rule,
                                          {.tokens = 200,
                                           .key_heads = 1,
                                           .value_heads = heads,
                                           .key_dim = 40,
                                           .value_dim = 168,
                                           .gate_heads = 1},
                                          {-0.1}, 43);
      std::uint64_t hash = 0xcbf29ce484222325ull;
      for (const auto& [name, values] : conformance::run<float>(runtime, problem, options))
        for (double value : values) {
          std::uint64_t bits;
          std::memcpy(&bits, &value, sizeof bits);
          hash = (hash ^ bits) * 0x9e3779b97f4a7c15ull;
          hash ^= hash >> 32;
        }
      std::printf("%016llx\n", static_cast<unsigned long long>(hash));
    }
}
