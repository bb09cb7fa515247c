// SPDX-License-Identifier: Apache-2.0
// Fetches the rows that the next chunk will read while this one computes. A head's rows lie far apart in
// memory, which the machine's own prefetching does not follow.
#pragma once

#include "recurrence/host/kernels/storage.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

class Ahead {
 public:
  /// Forgets what is left.
  void clear() { tensors_ = at_ = row_ = line_ = 0; }
  /// Adds the first n rows of a tensor's head.
  template <class T>
  void add(const Input<T>& rows, int n) {
    const Index size = sizeof(T);
    of_[tensors_++] = {reinterpret_cast<const char*>(rows.data), rows.stride * size,
                       static_cast<int>((rows.columns * size + 63) / 64), n};
  }
  /// Asks for some more cache lines. Called from within products, so that requests are spread over time.
  DELTAPORT_HOST_INLINE void fetch(int lines) {
    for (int i = 0; i < lines; ++i) fetch_line();
  }

 private:
  DELTAPORT_HOST_INLINE void fetch_line() {
    if (at_ == tensors_) return;
    const Rows& rows = of_[at_];
    __builtin_prefetch(rows.data + row_ * rows.stride + line_ * 64, 0, 2);
    if (++line_ < rows.lines) return;
    line_ = 0;
    if (++row_ < rows.count) return;
    row_ = 0;
    ++at_;
  }

  struct Rows {
    const char* data;
    Index stride;
    int lines, count;
  };
  Rows of_[8];
  int tensors_ = 0, at_ = 0, row_ = 0, line_ = 0;
};

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
