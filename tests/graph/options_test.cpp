// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "deltaport/graph/graph_segments.hpp"

namespace deltaport::graph {
namespace {

std::string refusal(const Options& options, bool bounds_are_checked = false) {
  try {
    check_options(options, bounds_are_checked);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return {};
}

TEST(GraphOptions, AcceptsWhatMakesSense) {
  for (const Scope scope : {Scope::none, Scope::attention, Scope::layer, Scope::step})
    EXPECT_EQ(refusal({.scope = scope}), "");
  EXPECT_EQ(refusal({.scope = Scope::none, .warmup_steps = 0}, true), "");
}

TEST(GraphOptions, NamesKeyAndReason) {
  EXPECT_NE(
      refusal({.scope = Scope::layer, .warmup_steps = 0}).find("graph.warmup_steps = 0 with a graph.scope"),
      std::string::npos);
  EXPECT_NE(refusal({.warmup_steps = -1}).find("graph.warmup_steps = -1 must not be negative"),
            std::string::npos);
  for (const std::int64_t bound : {0, -3})
    EXPECT_NE(refusal({.max_shapes = bound}).find(concat("graph.max_shapes = ", bound, " must be >= 1")),
              std::string::npos);
}

TEST(GraphOptions, BuildsThatCheckBoundsRefuseGraphs) {
  const std::string text = refusal({.scope = Scope::step}, true);
  EXPECT_NE(text.find("graph.scope must be none in this build"), std::string::npos);
  EXPECT_NE(text.find("Kokkos_ENABLE_DEBUG_BOUNDS_CHECK"), std::string::npos);
}

}  // namespace
}  // namespace deltaport::graph
