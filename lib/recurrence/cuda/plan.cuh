// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/chunks.cuh"

namespace deltaport::recurrence::cuda {

/// Hands out consecutive parts of a workspace, 1,024-byte aligned; with a null base it only counts.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    char* const at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + 1023) / 1024 * 1024;
    return reinterpret_cast<T*>(at);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  char* base_;
  std::size_t bytes_ = 0;
};

/// Columns of the tiles that hold K.
inline int padded(int key_dim) {
  return key_dim <= 64 ? 64 : 128;
}
/// run.operator()<E, padded_k>() for the element type and the head size of a call.
template <class Run>
cudaError_t for_type_and_width(Element element, int key_dim, Run run) {
  const bool is_narrow = padded(key_dim) == 64;
  if (element == Element::bfloat16) {
    return is_narrow ? run.template operator()<Bf16, 64>() : run.template operator()<Bf16, 128>();
  }
  return is_narrow ? run.template operator()<Half, 64>() : run.template operator()<Half, 128>();
}

/// Multiprocessors of the current device.
int processors();

Chunks make_chunks(const Sizes& sizes);
/// The table of chunks, and nothing without cu_seqlens.
cudaError_t launch_plan(Chunks& chunks, Chunk* table, cudaStream_t stream);
/// d_a_log [HV] and d_dt_bias [HV] (either may be null) from the partial sums [slots, HV, 2], in a fixed order.
cudaError_t launch_sum_partials(const Chunks& chunks, const float* partials, int value_heads, float* d_a_log,
                                float* d_dt_bias, cudaStream_t stream);
/// Zeroes the rows of `row_bytes` bytes (an even number) that no sequence covers.
cudaError_t launch_zero_uncovered(const Chunks& chunks, void* rows, std::int64_t row_bytes,
                                  cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
