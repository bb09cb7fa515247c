// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "recurrence/host/call.hpp"

namespace deltaport::recurrence::host {

/// Names of the instruction sets that this build has and this machine can run, best first: avx512
/// (x86-64-v4), avx2 (x86-64-v3), baseline.
std::vector<std::string_view> instruction_sets();

/// The best of them, or the one named by the environment variable DELTAPORT_HOST_ISA. Throws ConfigError when that
/// names another.
const Kernels& kernels();

/// The kernels of one of instruction_sets(). Throws ConfigError naming it and what there is.
const Kernels& kernels(std::string_view isa);

/// While an object lives, kernels() is that of `isa`. For tests and measurements; not thread-safe.
class UseInstructionSet {
 public:
  explicit UseInstructionSet(std::string_view isa);
  ~UseInstructionSet();
  UseInstructionSet(const UseInstructionSet&) = delete;
  UseInstructionSet& operator=(const UseInstructionSet&) = delete;

 private:
  const Kernels* kept_;
};

}  // namespace deltaport::recurrence::host
