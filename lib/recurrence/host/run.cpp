// SPDX-License-Identifier: Apache-2.0
#include "recurrence/host/run.hpp"

#include <algorithm>

#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

namespace deltaport::recurrence::host {
namespace {

int thread_index() {
#ifdef KOKKOS_ENABLE_OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// Of the longest sequence, or of one that takes all tokens where lengths change from replay to replay.
std::int64_t most_chunks(const Extents& x) {
  std::int64_t longest = host_may_read_inputs() ? 1 : x.tokens;
  for (std::int64_t n = 0; host_may_read_inputs() && n < x.sequences; ++n) {
    const auto span = x.span(n);
    longest = std::max(longest, span.end - span.begin);
    if (x.cu_seqlens == nullptr) break;
  }
  return (longest + chunk - 1) / chunk;
}

/// How many tasks a head becomes: one, or one per slice of value channels where there are fewer heads than threads.
/// Nothing of it changes a result: heads are apart, and sums over slices are added in the same order whoever
/// computes them.
int tasks_per_head(const Extents& x, const Call& call, std::int64_t threads, std::int64_t chunks, Pass pass) {
  const std::int64_t heads = x.sequences * x.value_heads;
  const int slices = kernels().slices(call);
  constexpr std::int64_t most_floats = std::int64_t{1} << 28;  // 1 GiB for what slices leave
  const std::int64_t left = pass == Pass::backward ? heads * slices * chunks * kernels().sums_size(call) : 0;
  return heads < threads && left <= most_floats ? slices : 1;
}

template <class Body>
void for_each_task(const ExecutionSpace& exec, std::int64_t tasks, const Body& body) {
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  enqueue_kernel("deltaport: recurrence on the host", Policy(exec, 0, tasks, Kokkos::ChunkSize(1)), body);
}

struct Tasks {
  Call call;
  Entry entry;
  Pass pass;
  int per_head;  // tasks
  int slices;    // of a head
  float* workspaces;
  std::int64_t workspace_size;
  float* sums;  // null: tasks take all slices
  std::int64_t sums_apart;

  void operator()(std::int64_t index) const {
    const std::int64_t item = index / per_head;
    Task task{item / call.value_heads, static_cast<int>(item % call.value_heads), 0, slices};
    if (per_head > 1) {
      task.first_slice = static_cast<int>(index % per_head);
      task.slices = 1;
    }
    float* workspace = workspaces + thread_index() * workspace_size;
    if (pass == Pass::forward)
      entry.forward(call, task, workspace);
    else
      entry.backward(call, task, workspace, sums == nullptr ? nullptr : sums + index * sums_apart);
  }
};

/// One head's chunk after its slices.
struct Combine {
  Extents x;
  Call call;
  Entry entry;
  std::int64_t chunks, size;
  int slices;
  const float* sums;
  float* workspaces;
  std::int64_t workspace_size;

  void operator()(std::int64_t index) const {
    const std::int64_t c = index % chunks, item = index / chunks;
    const auto span = x.span(item / x.value_heads);
    if (c * chunk >= span.end - span.begin) return;
    entry.combine(call, item / x.value_heads, static_cast<int>(item % x.value_heads), c,
                  sums + (item * slices * chunks + c) * size, chunks * size,
                  workspaces + thread_index() * workspace_size);
  }
};

}  // namespace

Call call_of(const Extents& x, double scale) {
  Call call{};
  call.cu_seqlens = x.cu_seqlens;
  call.tokens = x.tokens;
  call.rows = x.rows();
  call.key_heads = x.key_heads;
  call.value_heads = x.value_heads;
  call.gate_heads = x.gate_heads;
  call.key_dim = x.key_dim;
  call.value_dim = x.value_dim;
  call.scale = static_cast<float>(scale);
  return call;
}

void run(Runtime& runtime, const Extents& x, const Entry& entry, const Call& call, Pass pass) {
  const ExecutionSpace& exec = runtime.compute();
  const std::int64_t threads = exec.concurrency(), chunks = most_chunks(x);
  const int per_head = tasks_per_head(x, call, threads, chunks, pass);
  const bool combines = pass == Pass::backward && per_head > 1;
  std::int64_t size =
      pass == Pass::forward ? kernels().forward_workspace(call) : kernels().backward_workspace(call, chunks);
  if (combines) size = std::max<std::int64_t>(size, kernels().combine_workspace(call));
  const auto workspaces = runtime.allocate<float>("recurrence workspace", {threads, size});
  const std::int64_t sums_size = kernels().sums_size(call), items = x.sequences * x.value_heads;
  Tensor<float> sums;
  if (combines) sums = runtime.allocate<float>("recurrence sums", {items * per_head, chunks, sums_size});
  for_each_task(exec, items * per_head,
                Tasks{call, entry, pass, per_head, kernels().slices(call), workspaces.data(), size,
                      sums.data(), chunks * sums_size});
  if (combines)
    for_each_task(exec, items * chunks,
                  Combine{x, call, entry, chunks, sums_size, per_head, sums.data(), workspaces.data(), size});
}

}  // namespace deltaport::recurrence::host
