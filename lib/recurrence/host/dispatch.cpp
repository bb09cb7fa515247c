// SPDX-License-Identifier: Apache-2.0
#include "recurrence/host/dispatch.hpp"

#include <cstdlib>
#include <string>

#include "deltaport/core/error.hpp"

namespace deltaport::recurrence::host {

namespace baseline {
extern const Kernels kernels;
}
#ifdef DELTAPORT_HOST_X86
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

namespace {

std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> found;
#ifdef DELTAPORT_HOST_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd"))
    found.push_back(&avx512::kernels);
  if (avx2) found.push_back(&avx2::kernels);
#endif
  found.push_back(&baseline::kernels);
  return found;
}

const Kernels* choose() {
  const char* asked = std::getenv("DELTAPORT_HOST_ISA");
  return asked == nullptr || *asked == '\0' ? runnable().front() : &kernels(asked);
}

const Kernels*& chosen() {
  static const Kernels* kernels = choose();
  return kernels;
}

}  // namespace

std::vector<std::string_view> instruction_sets() {
  std::vector<std::string_view> names;
  for (const Kernels* each : runnable()) names.emplace_back(each->isa);
  return names;
}

const Kernels& kernels(std::string_view isa) {
  std::string names;
  for (const Kernels* each : runnable()) {
    if (each->isa == isa) return *each;
    names += (names.empty() ? "" : ", ") + std::string(each->isa);
  }
  throw ConfigError("DELTAPORT_HOST_ISA: instruction set \"" + std::string(isa) +
                    "\" cannot be run here; expected one of " + names);
}

const Kernels& kernels() {
  return *chosen();
}

UseInstructionSet::UseInstructionSet(std::string_view isa) : kept_(chosen()) {
  chosen() = &kernels(isa);
}
UseInstructionSet::~UseInstructionSet() {
  chosen() = kept_;
}

}  // namespace deltaport::recurrence::host
