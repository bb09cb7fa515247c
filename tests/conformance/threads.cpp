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
    const Activations all{
        .l2_norm = true, .gate = Gate::softplus, .beta = Beta::sigmoid, .write_sigmoid = rule == Rule::gdn2};
    const auto problem = random_problem(rule,
                                        {.tokens = 300,
                                         .key_heads = 2,
                                         .value_heads = 4,
                                         .key_dim = 24,
                                         .value_dim = 32,
                                         .gate_heads = 2,
                                         .cu_seqlens = {0, 20, 21, 150, 290}},
                                        {-0.1}, 41, all);
    for (const auto& [name, values] : conformance::run<T>(runtime, problem, options))
      for (double value : values) {
        std::uint64_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        hash = (hash ^ bits) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 32;
      }
  }
  return hash;
}

}  // namespace

int main() {
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  using recurrence::Implementation;
  for (auto implementation : {Implementation::reference, Implementation::portable, Implementation::host})
    if (recurrence::available(implementation)) {
      const std::uint64_t hashes[] = {
          hash_of<float>(runtime, implementation), hash_of<bfloat16>(runtime, implementation),
          hash_of<double>(
              runtime, implementation == Implementation::host ? Implementation::portable : implementation)};
      for (std::uint64_t hash : hashes) std::printf("%016llx\n", static_cast<unsigned long long>(hash));
    }
}
