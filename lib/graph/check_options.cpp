// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/error.hpp"
#include "deltaport/graph/graph_segments.hpp"

namespace deltaport::graph {
namespace {

#ifdef KOKKOS_ENABLE_DEBUG_BOUNDS_CHECK
constexpr bool build_checks_bounds = true;
#else
constexpr bool build_checks_bounds = false;
#endif

}  // namespace

void check_options(const Options& options) {
  check_options(options, build_checks_bounds);
}

void check_options(const Options& options, bool bounds_are_checked) {
  DELTAPORT_VALIDATE(options.max_shapes >= 1, ConfigError, "graph.max_shapes = ", options.max_shapes,
                     " must be >= 1: it bounds how many shapes are captured");
  DELTAPORT_VALIDATE(options.warmup_steps >= 0, ConfigError, "graph.warmup_steps = ", options.warmup_steps,
                     " must not be negative");
  if (options.scope == Scope::none) return;
  DELTAPORT_VALIDATE(
      options.warmup_steps >= 1, ConfigError,
      "graph.warmup_steps = 0 with a graph.scope: kernels are loaded and memory is measured in an eager "
      "step before the capture; it must be >= 1");
  DELTAPORT_VALIDATE(
      !bounds_are_checked, ConfigError,
      "graph.scope must be none in this build: its Kokkos was built with "
      "Kokkos_ENABLE_DEBUG_BOUNDS_CHECK, which waits after every kernel, and no capture allows that");
}

}  // namespace deltaport::graph
