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

std::int64_t most_chunks(const Extents& x) {
  std::int64_t longest = 1;
  for (std::int64_t n = 0; n < x.sequences; ++n) {
    const auto span = x.span(n);
    longest = std::max(longest, span.end - span.begin);
    if (x.cu_seqlens == nullptr) break;
  }
  return (longest + chunk - 1) / chunk;
}

/// Neighbouring heads share pages and cache sets of every tensor, so a task takes several where enough tasks
/// remain to keep all threads busy.
int heads_per_task(const Extents& x, std::int64_t threads) {
  int heads = std::min(most_heads, x.value_heads);
  while (heads > 1 && x.sequences * ((x.value_heads + heads - 1) / heads) < 2 * threads) heads /= 2;
  return heads;
}

/// How a call is cut into tasks. Nothing of it changes a result: heads are apart, and sums over slices are added
/// in the same order whoever computes them.
struct Cut {
  int heads;   // per task
  int groups;  // of heads
  int slices;  // per head that are tasks of their own; 1: all slices in one task
};
Cut cut_of(const Extents& x, const Call& call, std::int64_t threads, std::int64_t chunks, Pass pass) {
  const int heads = heads_per_task(x, threads);
  const Cut whole{heads, (x.value_heads + heads - 1) / heads, 1};
  const std::int64_t all = x.sequences * x.value_heads;
  const int slices = kernels().slices(call);
  if (all >= threads || slices == 1) return whole;
  constexpr std::int64_t most_floats = std::int64_t{1} << 28;  // 1 GiB for what slices leave
  if (pass == Pass::backward && all * slices * chunks * kernels().sums_size(call) > most_floats) return whole;
  return {1, x.value_heads, slices};
}

template <class Body>
void for_each_task(const ExecutionSpace& exec, std::int64_t tasks, const Body& body) {
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("deltaport: recurrence on the host", Policy(exec, 0, tasks, Kokkos::ChunkSize(1)),
                       body);
}

struct Tasks {
  Call call;
  Entry entry;
  Pass pass;
  Cut cut;
  int all_slices;
  float* workspaces;
  std::int64_t workspace_size;
  float* sums;  // null: tasks take all slices
  std::int64_t sums_apart;

  void operator()(std::int64_t index) const {
    const std::int64_t item = index / cut.slices;
    const int first = static_cast<int>(item % cut.groups) * cut.heads;
    Task task{item / cut.groups, first, std::min(cut.heads, call.value_heads - first), 0, all_slices};
    if (cut.slices > 1) {
      task.first_slice = static_cast<int>(index % cut.slices);
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
  const Cut cut = cut_of(x, call, threads, chunks, pass);
  const bool combines = pass == Pass::backward && cut.slices > 1;
  std::int64_t size = pass == Pass::forward ? kernels().forward_workspace(call, cut.heads)
                                            : kernels().backward_workspace(call, cut.heads, chunks);
  if (combines) size = std::max<std::int64_t>(size, kernels().combine_workspace(call));
  const auto workspaces = runtime.allocate<float>("recurrence workspace", {threads, size});
  const std::int64_t sums_size = kernels().sums_size(call), items = x.sequences * cut.groups;
  Tensor<float> sums;
  if (combines) sums = runtime.allocate<float>("recurrence sums", {items * cut.slices, chunks, sums_size});
  for_each_task(exec, items * cut.slices,
                Tasks{call, entry, pass, cut, kernels().slices(call), workspaces.data(), size, sums.data(),
                      chunks * sums_size});
  if (combines)
    for_each_task(
        exec, items * chunks,
        Combine{x, call, entry, chunks, sums_size, cut.slices, sums.data(), workspaces.data(), size});
}

}  // namespace deltaport::recurrence::host
