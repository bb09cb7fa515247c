// SPDX-License-Identifier: Apache-2.0
// The table of one instruction set.
#pragma once

#include "recurrence/host/kernels/walk.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

template <class Rule>
constexpr Entry entry() {
  return {forward<Rule>, backward<Rule>, combine<Rule>};
}
/// The larger of the two rules', so that one number serves.
long long forward_workspace(const Call& call) {
  const Index gdn = ForwardSpace<Gdn<float>>(call, nullptr).carver.used;
  const Index gdn2 = ForwardSpace<Gdn2<float>>(call, nullptr).carver.used;
  return gdn > gdn2 ? gdn : gdn2;
}
long long backward_workspace(const Call& call, long long chunks) {
  const Index gdn = BackwardSpace<Gdn<float>>(call, chunks, nullptr).carver.used;
  const Index gdn2 = BackwardSpace<Gdn2<float>>(call, chunks, nullptr).carver.used;
  return gdn > gdn2 ? gdn : gdn2;
}

long long combine_workspace(const Call& call) {
  const Index gdn = CombineSpace<Gdn<float>>(call, nullptr).carver.used;
  const Index gdn2 = CombineSpace<Gdn2<float>>(call, nullptr).carver.used;
  return gdn > gdn2 ? gdn : gdn2;
}
long long sums_size(const Call& call) {
  return size_of_sums(Sizes(call));
}
int slices(const Call& call) {
  return Sizes(call).slices();
}

/// The compiler may not know that a register's value is not needed.
#if defined(__SSE2__)
#define DELTAPORT_KEEP(x) __asm__ volatile("" : "+v"(x))
#else
#define DELTAPORT_KEEP(x)
#endif

double multiply_adds(long long rounds, float* sink) {
  constexpr int independent = 12;
  Vector sum[independent];
  const Vector factor = load(sink), term = load(sink + width);
#pragma GCC unroll 12
  for (int i = 0; i < independent; ++i) sum[i] = term * static_cast<float>(i);
  for (long long r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < independent; ++i) {
      sum[i] = sum[i] * factor + term;
      DELTAPORT_KEEP(sum[i]);
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < independent; ++i) sum[0] += sum[i];
  store(sink, sum[0]);
  return 2.0 * width * independent * static_cast<double>(rounds);
}

}  // namespace

#define DELTAPORT_NAME_OF(x) #x
#define DELTAPORT_STRING(x) DELTAPORT_NAME_OF(x)
extern const Kernels kernels;
const Kernels kernels{DELTAPORT_STRING(DELTAPORT_HOST_ISA),
                      {entry<Gdn<float>>(), entry<Gdn<Bfloat16>>(), entry<Gdn<Float16>>()},
                      {entry<Gdn2<float>>(), entry<Gdn2<Bfloat16>>(), entry<Gdn2<Float16>>()},
                      forward_workspace,
                      backward_workspace,
                      combine_workspace,
                      sums_size,
                      slices,
                      multiply_adds};

}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
