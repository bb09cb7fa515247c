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

struct Tasks {
  Call call;
  void (*kernel)(const Call&, const Task&, float*);
  int heads, groups;
  float* workspaces;
  std::int64_t workspace_size;
  void operator()(std::int64_t index) const {
    const int first = static_cast<int>(index % groups) * heads;
    const Task task{index / groups, first, std::min(heads, call.value_heads - first)};
    kernel(call, task, workspaces + thread_index() * workspace_size);
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
  const std::int64_t threads = exec.concurrency();
  const int heads = heads_per_task(x, threads);
  const std::int64_t size = pass == Pass::forward ? kernels().forward_workspace(call, heads)
                                                  : kernels().backward_workspace(call, heads, most_chunks(x));
  const auto workspaces = runtime.allocate<float>("recurrence workspace", {threads, size});
  const int groups = (x.value_heads + heads - 1) / heads;
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("deltaport: recurrence on the host",
                       Policy(exec, 0, x.sequences * groups, Kokkos::ChunkSize(1)),
                       Tasks{call, pass == Pass::forward ? entry.forward : entry.backward, heads, groups,
                             workspaces.data(), size});
}

}  // namespace deltaport::recurrence::host
