// SPDX-License-Identifier: Apache-2.0
#include "recurrence/rows.hpp"

namespace deltaport::recurrence {
namespace {

template <class X>
struct ZeroUncoveredRows {
  Extents extents;
  std::int64_t width;
  X* x;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    if (extents.covers(row)) return;
    for (std::int64_t i = 0; i < width; ++i) x[row * width + i] = X(0);
  }
};

template <class X>
struct SumOverGroup {
  const X* per_head;
  X* sum;
  int group, width;
  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t row = team.league_rank();
    const X* in = per_head + row * group * width;
    X* out = sum + row * width;
    const int heads = group;
    const int n = width;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, n), [=](int i) {
      X total = in[i];
      for (int h = 1; h < heads; ++h) total += in[std::int64_t{h} * n + i];
      out[i] = total;
    });
  }
};

}  // namespace

template <class X>
void zero_uncovered_rows(const ExecutionSpace& exec, const Extents& extents, const Tensor<X>& x) {
  if (extents.cu_seqlens == nullptr || x.size() == 0) return;
  for_each_index(exec, "deltaport: zero uncovered rows", extents.rows(),
                 ZeroUncoveredRows<X>{extents, x.size() / extents.rows(), x.data()});
}

template <class X>
void sum_over_group(const ExecutionSpace& exec, const Extents& extents, const Tensor<X>& per_head,
                    const Tensor<X>& sum) {
  const auto width = static_cast<int>(sum.size() / (extents.rows() * extents.key_heads));
  for_each_row(exec, "deltaport: sum over group", extents.rows() * extents.key_heads,
               SumOverGroup<X>{per_head.data(), sum.data(), extents.group(), width});
}

#define DELTAPORT_INSTANTIATE(X)                                                                 \
  template void zero_uncovered_rows<X>(const ExecutionSpace&, const Extents&, const Tensor<X>&); \
  template void sum_over_group<X>(const ExecutionSpace&, const Extents&, const Tensor<X>&, const Tensor<X>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE
// Implementations that write halves themselves.
template void zero_uncovered_rows<bfloat16>(const ExecutionSpace&, const Extents&, const Tensor<bfloat16>&);
template void zero_uncovered_rows<float16>(const ExecutionSpace&, const Extents&, const Tensor<float16>&);

}  // namespace deltaport::recurrence
