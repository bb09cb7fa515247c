// SPDX-License-Identifier: Apache-2.0
// What a pass does and when, with two segments around a piece of eager work.
#include "deltaport/graph/graph_segments.hpp"

#include <gtest/gtest.h>

#include "deltaport/core/parallel.hpp"

namespace deltaport::graph {
namespace {

struct Affine {
  const double* in;
  const double* shift;
  double factor;
  double* out;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { out[i] = factor * in[i] + shift[0]; }
};
struct Accumulate1 {
  const double* in;
  double* total;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { total[i] += in[i]; }
};

class GraphSegmentsTest : public ::testing::Test {
 protected:
  Tensor<double> numbers(const std::vector<double>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "numbers",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  Tensor<double> affine(const Tensor<double>& x, const Tensor<double>& shift, double factor) {
    const auto y = runtime.allocate<double>("affine", x.shape());
    for_each_index(runtime.compute(), "test: affine", x.size(),
                   Affine{x.data(), shift.data(), factor, y.data()});
    return y;
  }

  /// total += 5 ((3 (2 x + s)) + s): the middle product eagerly, between the first segment and the second, which
  /// takes what the first saved.
  void pass(GraphSegments& graphs, const std::vector<double>& x, double shift, const Tensor<double>& total) {
    const auto host_x = numbers(x), host_shift = numbers({shift});
    SavedTensors saved;
    Context context{runtime, saved, Mode::train, &graphs};
    SegmentPass p(context, "test", {host_x, host_shift});
    const auto input = p.input<double>(0), s = p.input<double>(1);
    AnyTensors y =
        run_segment(context, SegmentLevel::layer, "first", {input}, {}, [&](AnyTensors in) -> AnyTensors {
          ++bodies;
          saved.save(s);
          return {affine(in[0].as<double>(), s, 2.0)};
        });
    if (throw_between) throw Error("between segments");
    const auto zero = numbers({0.0});
    Tensor<double> middle = affine(y[0].as<double>(), zero, 3.0);
    y.clear();
    run_segment(context, SegmentLevel::layer, second, {middle}, {total}, [&](AnyTensors in) -> AnyTensors {
      ++bodies;
      const auto kept = saved.take<double>();
      const auto z = affine(affine(in[0].as<double>(), kept, 1.0), numbers_zero, 5.0);
      for_each_index(runtime.compute(), "test: add", z.size(), Accumulate1{z.data(), total.data()});
      return {};
    });
    EXPECT_TRUE(saved.empty());
    p.end();
  }
  double expected(double x, double shift) { return 5.0 * (3.0 * (2.0 * x + shift) + shift); }
  double value(const Tensor<double>& x) { return to_vector(runtime.compute(), x)[0]; }

  Runtime runtime;
  Tensor<double> numbers_zero = runtime.allocate_zero<double>("zero", Shape{1});
  int bodies = 0;
  bool throw_between = false;
  std::string second = "second";
};

TEST_F(GraphSegmentsTest, WarmsUpMeasuresCapturesAndReplaysWithTheSameResults) {
  GraphSegments graphs(runtime, {.scope = Scope::layer, .warmup_steps = 2});
  const auto total = runtime.allocate_zero<double>("total", Shape{1});
  double sum = 0;
  for (int step = 0; step < 6; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      const double x = 1.0 + step, shift = 0.5 * micro;
      pass(graphs, {x}, shift, total);
      sum += expected(x, shift);
      EXPECT_EQ(value(total), sum) << step << " " << micro;
    }
    graphs.step_done();
    EXPECT_EQ(graphs.stats().segments, step < 2 ? 0 : 2) << step;
  }
  // Two warm-up steps of two passes each, and the pass that captures.
  EXPECT_EQ(bodies, 2 * (4 + 1));
  const Stats stats = graphs.stats();
  EXPECT_EQ(stats.chains, 1);
  EXPECT_EQ(stats.operations, 1 + 3);
  EXPECT_EQ(stats.launches, 2 * 8);
  EXPECT_GE(stats.bytes, 256u);
  EXPECT_GT(stats.capture_seconds, 0.0);
  EXPECT_TRUE(graphs.take_notes().empty());
}

TEST_F(GraphSegmentsTest, OtherShapesGetTheirOwnGraphsUpToTheBound) {
  GraphSegments graphs(runtime, {.scope = Scope::layer, .max_shapes = 2});
  const auto one = runtime.allocate_zero<double>("total", Shape{1});
  const auto two = runtime.allocate_zero<double>("total", Shape{2});
  const auto three = runtime.allocate_zero<double>("total", Shape{3});
  for (int step = 0; step < 4; ++step) {
    pass(graphs, {1}, 1, one);
    if (step > 0) pass(graphs, {2, 3}, 2, two);
    graphs.step_done();
  }
  EXPECT_EQ(graphs.stats().chains, 2);
  EXPECT_EQ(value(one), 4 * expected(1, 1));
  EXPECT_EQ(to_vector(runtime.compute(), two), (std::vector<double>{3 * expected(2, 2), 3 * expected(3, 2)}));
  try {
    pass(graphs, {1, 2, 3}, 0, three);
    FAIL() << "a third shape was taken";
  } catch (const CaptureError& e) {
    const std::string text = e.what();
    EXPECT_NE(
        text.find(
            "graph.max_shapes = 2 is reached: inputs of another form, float64[3] float64[1], came to the "
            "pass 'test'"),
        std::string::npos)
        << text;
  }
  // The others go on.
  pass(graphs, {1}, 1, one);
  EXPECT_EQ(value(one), 5 * expected(1, 1));
}

TEST_F(GraphSegmentsTest, ShapesBeyondTheBoundMayRunEagerly) {
  GraphSegments graphs(runtime, {.scope = Scope::layer, .on_failure = OnFailure::eager, .max_shapes = 1});
  const auto one = runtime.allocate_zero<double>("total", Shape{1});
  const auto two = runtime.allocate_zero<double>("total", Shape{2});
  for (int step = 0; step < 4; ++step) {
    pass(graphs, {1}, 1, one);
    pass(graphs, {2, 3}, 2, two);
    graphs.step_done();
  }
  EXPECT_EQ(graphs.stats().chains, 1);
  EXPECT_EQ(to_vector(runtime.compute(), two), (std::vector<double>{4 * expected(2, 2), 4 * expected(3, 2)}));
  const auto notes = graphs.take_notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("runs eagerly"), std::string::npos) << notes[0];
}

/// Fails the n-th operation that is captured.
OperationObserver fail_at(int n) {
  return [n, seen = std::make_shared<int>(0)](const char* operation) {
    if (++*seen == n) throw Error(concat("injected into ", operation));
  };
}

TEST_F(GraphSegmentsTest, AFailedCaptureNamesTheOperationAndEndsWithItsError) {
  for (int n = 1; n <= 4; ++n) {
    GraphSegments graphs(runtime, {.scope = Scope::layer, .observe = fail_at(n)});
    const auto total = runtime.allocate_zero<double>("total", Shape{1});
    pass(graphs, {1}, 1, total);
    graphs.step_done();
    try {
      pass(graphs, {1}, 1, total);
      FAIL() << n;
    } catch (const CaptureError& e) {
      const std::string text = e.what();
      const char* const operation = n < 4 ? "test: affine" : "test: add";
      EXPECT_NE(text.find(concat("injected into ", operation)), std::string::npos) << text;
      EXPECT_NE(text.find(n == 1 ? "segment 'first'" : "segment 'second'"), std::string::npos) << text;
    }
    EXPECT_FALSE(is_recording());
    // The pass was abandoned, whatever it had done; the next one begins anew.
    set_zero(runtime.compute(), total);
    for (int i = 0; i < 3; ++i) pass(graphs, {1}, 1, total);
    EXPECT_EQ(value(total), 3 * expected(1, 1));
    EXPECT_EQ(graphs.stats().segments, 2);
  }
}

TEST_F(GraphSegmentsTest, AFailedCaptureFallsBackToEagerInTheMiddleOfAPass) {
  for (int n = 1; n <= 4; ++n) {
    const std::size_t before = runtime.arena().stats().allocated;
    {
      GraphSegments graphs(runtime,
                           {.scope = Scope::layer, .on_failure = OnFailure::eager, .observe = fail_at(n)});
      const auto total = runtime.allocate_zero<double>("total", Shape{1});
      for (int step = 0; step < 4; ++step) {
        pass(graphs, {1.0 + step}, 1, total);
        graphs.step_done();
      }
      EXPECT_EQ(value(total), expected(1, 1) + expected(2, 1) + expected(3, 1) + expected(4, 1)) << n;
      EXPECT_EQ(graphs.stats().segments, 0);
      EXPECT_EQ(graphs.stats().bytes, 0u);
      const auto notes = graphs.take_notes();
      ASSERT_EQ(notes.size(), 1u);
      EXPECT_NE(notes[0].find("injected into test: a"), std::string::npos) << notes[0];
    }
    EXPECT_EQ(runtime.arena().stats().allocated, before);
  }
}

TEST_F(GraphSegmentsTest, APassLeftByAnExceptionIsForgotten) {
  GraphSegments graphs(runtime, {.scope = Scope::layer});
  const auto total = runtime.allocate_zero<double>("total", Shape{1});
  for (int broken = 0; broken < 4; ++broken) {
    for (int step = 0; step < broken; ++step) pass(graphs, {1}, 1, total);
    throw_between = true;
    EXPECT_THROW(pass(graphs, {1}, 1, total), Error);
    throw_between = false;
    set_zero(runtime.compute(), total);
    for (int i = 0; i < 3; ++i) pass(graphs, {1}, 1, total);
    EXPECT_EQ(value(total), 3 * expected(1, 1));
    graphs.step_done();
  }
}

TEST_F(GraphSegmentsTest, ReplaysRefuseOtherWork) {
  GraphSegments graphs(runtime, {.scope = Scope::layer});
  const auto total = runtime.allocate_zero<double>("total", Shape{1});
  const auto other = runtime.allocate_zero<double>("total", Shape{1});
  for (int i = 0; i < 3; ++i) {
    pass(graphs, {1}, 1, total);
    graphs.step_done();
  }
  const auto message = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const CaptureError& e) {
      return e.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(message([&] { pass(graphs, {1}, 1, other); }).find("it has moved"), std::string::npos);
  EXPECT_EQ(value(other), 0);
  second = "another";
  EXPECT_NE(message([&] {
              pass(graphs, {1}, 1, total);
            }).find("comes to segment 'another' where it captured 'second'"),
            std::string::npos);
  second = "second";
  SavedTensors saved;
  Context context{runtime, saved, Mode::train, &graphs};
  EXPECT_NE(message([&] {
              const auto x = numbers({1}), s = numbers({1});
              SegmentPass p(context, "test", {x, s});
              p.end();
            }).find("ended before segment 'first'"),
            std::string::npos);
  EXPECT_NE(message([&] {
              const auto x = numbers({1}), s = numbers({1});
              const SegmentPass p(context, "test", {x, s});
              SegmentPass(context, "test", {x, s});
            }).find("begins inside a pass"),
            std::string::npos);
  set_zero(runtime.compute(), total);
  pass(graphs, {1}, 1, total);
  EXPECT_EQ(value(total), expected(1, 1));
}

TEST_F(GraphSegmentsTest, InvalidatingGivesTheMemoryBack) {
  GraphSegments graphs(runtime, {.scope = Scope::layer});
  const auto total = runtime.allocate_zero<double>("total", Shape{1});
  const std::size_t before = runtime.arena().stats().allocated;
  for (int i = 0; i < 3; ++i) {
    pass(graphs, {1}, 1, total);
    graphs.step_done();
  }
  EXPECT_EQ(runtime.arena().stats().allocated, before + graphs.stats().bytes);
  graphs.invalidate();
  EXPECT_EQ(runtime.arena().stats().allocated, before);
  pass(graphs, {1}, 1, total);
  pass(graphs, {1}, 1, total);
  EXPECT_EQ(value(total), 5 * expected(1, 1));
  EXPECT_EQ(graphs.stats().segments, 2);
}

// Passes follow each other, so all shapes live in memory for the largest.
TEST_F(GraphSegmentsTest, ShapesShareOneBlock) {
  const auto bytes_with = [&](const std::vector<std::size_t>& sizes) {
    GraphSegments graphs(runtime, {.scope = Scope::layer});
    const std::size_t before = runtime.arena().stats().allocated;
    std::vector<Tensor<double>> totals;
    for (const std::size_t size : sizes)
      totals.push_back(runtime.allocate_zero<double>("total", Shape{static_cast<std::int64_t>(size)}));
    constexpr int steps = 5;
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < sizes.size(); ++i)
        pass(graphs, std::vector<double>(sizes[i], 1.0 + step), 1, totals[i]);
      graphs.step_done();
    }
    for (const auto& total : totals)
      for (const double sum : to_vector(runtime.compute(), total)) {
        double wanted = 0;
        for (int step = 0; step < steps; ++step) wanted += expected(1.0 + step, 1);
        EXPECT_EQ(sum, wanted);
      }
    EXPECT_EQ(graphs.stats().chains, static_cast<std::int64_t>(sizes.size()));
    totals.clear();
    EXPECT_EQ(runtime.arena().stats().allocated, before + graphs.stats().bytes);
    return graphs.stats().bytes;
  };
  const std::size_t large = bytes_with({5000});
  EXPECT_GT(large, bytes_with({3000}));
  EXPECT_EQ(bytes_with({5000, 3000, 10}), large);
  EXPECT_EQ(bytes_with({10, 3000, 5000}), large);  // replaced twice on the way
}

TEST_F(GraphSegmentsTest, OtherLevelsAndTheWorkTimerRunEagerly) {
  const auto total = runtime.allocate_zero<double>("total", Shape{1});
  for (const Scope scope : {Scope::none, Scope::attention, Scope::step}) {
    GraphSegments graphs(runtime, {.scope = scope});
    for (int i = 0; i < 3; ++i) {
      pass(graphs, {1}, 1, total);
      graphs.step_done();
    }
    EXPECT_EQ(graphs.stats().chains, 0);
  }
  GraphSegments graphs(runtime, {.scope = Scope::layer});
  graphs.step_done();
  runtime.timer().enable(true);
  for (int i = 0; i < 3; ++i) pass(graphs, {1}, 1, total);
  runtime.timer().enable(false);
  EXPECT_EQ(graphs.stats().chains, 0);
  EXPECT_EQ(value(total), 12 * expected(1, 1));
}

}  // namespace
}  // namespace deltaport::graph
