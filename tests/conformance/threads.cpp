// SPDX-License-Identifier: Apache-2.0
// Prints a hash over the bits of all results, for threads.cmake to compare between thread counts.
#include <cstdio>
#include <cstring>

#include "conformance/harness.hpp"

namespace {

using namespace deltaport;
using namespace deltaport::conformance;

template <class T>
std::uint64_t hash_of(Runtime& runtime, recurrence::Implementation implementation) {
  recurrence::Options options;
  options.implementation = implementation;
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    const auto problem = random_problem(rule,
                                        {.tokens = 300,
                                         .key_heads = 2,
                                         .value_heads = 4,
                                         .key_dim = 24,
                                         .value_dim = 32,
                                         .gate_heads = 2,
                                         .cu_seqlens = {0, 20, 21, 150, 290}},
                                        {-0.1}, 41);
    for (const auto& [name, values] : conformance::run<T>(runtime, problem, options))
      for (double value : values) {
        std::uint64_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3ull;
      }
  }
  return hash;
}

}  // namespace

int main() {
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  for (auto implementation : {recurrence::Implementation::reference, recurrence::Implementation::portable})
    std::printf("%016llx %016llx\n", static_cast<unsigned long long>(hash_of<float>(runtime, implementation)),
                static_cast<unsigned long long>(hash_of<double>(runtime, implementation)));
}
