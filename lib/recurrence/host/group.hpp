// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"
#include "recurrence/extents.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::host {

/// A gradient that kernels write per value head and that may belong to a tensor with one head per group. Then
/// the heads are kept in float32, added up in ascending order and rounded to T once.
template <class T>
class GroupSum {
 public:
  GroupSum(Runtime& runtime, const char* name, const Extents& x, int heads, int width)
      : heads_(heads), width_(width) {
    result_ = runtime.allocate<T>(name, {x.batch, x.tokens, heads, width});
    if (heads != x.value_heads)
      per_head_ = runtime.allocate<float>(name, {x.batch, x.tokens, x.value_heads, width});
  }
  /// What kernels write: [B, T, HV, width], float32 when is_wide(), else T.
  void* data() const {
    return is_wide() ? static_cast<void*>(per_head_.data()) : static_cast<void*>(result_.data());
  }
  bool is_wide() const { return per_head_.defined(); }

  /// The gradient; zero in rows that no sequence covers.
  Tensor<T> finish(const ExecutionSpace& exec, const Extents& x) {
    if (is_wide()) {
      for_each_index(exec, "deltaport: sum over group", x.rows() * heads_,
                     Add{x, per_head_.data(), result_.data(), x.value_heads / heads_, heads_, width_});
      per_head_ = {};
    } else {
      zero_uncovered_rows(exec, x, result_);
    }
    return result_;
  }

 private:
  struct Add {
    Extents x;
    const float* per_head;
    T* sum;
    int group, heads, width;
    void operator()(std::int64_t index) const {
      const float* in = per_head + index * group * width;
      T* out = sum + index * width;
      const bool covered = x.covers(index / heads);
      for (int i = 0; i < width; ++i) {
        float total = 0.0f;
        if (covered) {
          total = in[i];
          for (int h = 1; h < group; ++h) total += in[std::int64_t{h} * width + i];
        }
        out[i] = static_cast<T>(total);
      }
    }
  };

  Tensor<T> result_;
  Tensor<float> per_head_;
  int heads_, width_;
};

}  // namespace deltaport::recurrence::host
