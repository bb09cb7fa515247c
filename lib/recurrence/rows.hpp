// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"
#include "recurrence/extents.hpp"

namespace deltaport::recurrence {

/// Sets the rows of x ([rows, width]) that no sequence covers to zero. Does nothing without cu_seqlens.
template <class X>
void zero_uncovered_rows(const ExecutionSpace& exec, const Extents& extents, const Tensor<X>& x);

/// sum[row, h, :] = sum over the group's value heads of per_head[row, h * G + i, :], i ascending.
template <class X>
void sum_over_group(const ExecutionSpace& exec, const Extents& extents, const Tensor<X>& per_head,
                    const Tensor<X>& sum);

/// A gradient that is computed per value head and may belong to a tensor with one head per group.
template <class X>
struct GroupGradient {
  Tensor<X> result;    ///< [B, T, heads, width], returned to the caller
  Tensor<X> per_head;  ///< [B, T, HV, width], written by the kernel; the same as result when heads = HV

  GroupGradient(Runtime& runtime, const char* name, const Extents& x, int heads, int width) {
    result = runtime.allocate<X>(name, {x.batch, x.tokens, heads, width});
    per_head = heads == x.value_heads ? result
                                      : runtime.allocate<X>(name, {x.batch, x.tokens, x.value_heads, width});
  }
  /// Sums the group and gives the scratch back.
  Tensor<X> finish(const ExecutionSpace& exec, const Extents& x) {
    zero_uncovered_rows(exec, x, per_head);
    if (per_head.data() != result.data()) sum_over_group(exec, x, per_head, result);
    per_head = {};
    return result;
  }
};

}  // namespace deltaport::recurrence
