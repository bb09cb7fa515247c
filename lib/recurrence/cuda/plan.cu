// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/plan.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// One block per sequence. Slots between the chunks of a sequence and the next sequence get no rows.
__global__ void fill_table(const Chunks chunks, Chunk* table) {
  const int sequence = blockIdx.x;
  const std::int64_t begin = chunks.begin(sequence), length = chunks.length(sequence);
  const std::int64_t first = chunks.first_slot(sequence);
  const std::int64_t next =
      sequence + 1 < chunks.sequences ? chunks.first_slot(sequence + 1) : chunks.slots();
  for (std::int64_t slot = first + threadIdx.x; slot < next; slot += blockDim.x) {
    const std::int64_t offset = (slot - first) * chunk_rows, left = length - offset;
    const int rows = left <= 0 ? 0 : static_cast<int>(left < chunk_rows ? left : chunk_rows);
    table[slot] = Chunk{begin + offset, rows};
  }
}

/// cu_seqlens never decreases, so only rows before the first sequence and after the last are uncovered.
__global__ void zero_uncovered(const Chunks chunks, char* rows, std::int64_t row_bytes) {
  const std::int64_t units = row_bytes / 2;
  const std::int64_t head = chunks.begin(0) * units,
                     tail = chunks.clamp(chunks.cu_seqlens[chunks.sequences]) * units;
  const std::int64_t count = head + chunks.tokens * units - tail;
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    reinterpret_cast<std::uint16_t*>(rows)[i < head ? i : tail + (i - head)] = 0;
  }
}

/// One block per value head; thread t sums slots t, t + 256, ..., then the block in a fixed tree.
__global__ void sum_partials(const Chunks chunks, const float* partials, int value_heads, float* d_a_log,
                             float* d_dt_bias) {
  __shared__ float2 sums[256];
  const int head = blockIdx.x, thread = threadIdx.x;
  float2 sum = make_float2(0.0f, 0.0f);
  for (std::int64_t slot = thread; slot < chunks.slots(); slot += 256) {
    if (chunks.at(slot).rows == 0) continue;
    const float2 x = reinterpret_cast<const float2*>(partials)[slot * value_heads + head];
    sum.x += x.x, sum.y += x.y;
  }
  sums[thread] = sum;
  for (int step = 128; step > 0; step /= 2) {
    __syncthreads();
    if (thread < step) {
      sums[thread].x += sums[thread + step].x;
      sums[thread].y += sums[thread + step].y;
    }
  }
  if (thread == 0) {
    if (d_a_log != nullptr) d_a_log[head] = sums[0].x;
    if (d_dt_bias != nullptr) d_dt_bias[head] = sums[0].y;
  }
}

}  // namespace

cudaError_t launch_sum_partials(const Chunks& chunks, const float* partials, int value_heads, float* d_a_log,
                                float* d_dt_bias, cudaStream_t stream) {
  sum_partials<<<value_heads, 256, 0, stream>>>(chunks, partials, value_heads, d_a_log, d_dt_bias);
  return cudaGetLastError();
}

int processors() {
  int device = 0, count = 1;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  return count;
}

Chunks make_chunks(const Sizes& sizes) {
  Chunks chunks;
  chunks.tokens = sizes.tokens;
  chunks.sequences = sizes.sequences;
  chunks.chunks_per_sequence = static_cast<int>((sizes.tokens + chunk_rows - 1) / chunk_rows);
  chunks.by_sequences = Divisor(sizes.sequences);
  chunks.cu_seqlens = sizes.cu_seqlens;
  return chunks;
}

cudaError_t launch_plan(Chunks& chunks, Chunk* table, cudaStream_t stream) {
  if (chunks.cu_seqlens == nullptr) return cudaSuccess;
  chunks.table = table;
  fill_table<<<chunks.sequences, 64, 0, stream>>>(chunks, table);
  return cudaGetLastError();
}

cudaError_t launch_zero_uncovered(const Chunks& chunks, void* rows, std::int64_t row_bytes,
                                  cudaStream_t stream) {
  if (chunks.cu_seqlens == nullptr || rows == nullptr) return cudaSuccess;
  zero_uncovered<<<64, 128, 0, stream>>>(chunks, static_cast<char*>(rows), row_bytes);
  return cudaGetLastError();
}

}  // namespace deltaport::recurrence::cuda
