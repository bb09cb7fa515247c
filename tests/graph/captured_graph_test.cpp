// SPDX-License-Identifier: Apache-2.0
#include "deltaport/graph/captured_graph.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/parallel.hpp"

namespace deltaport::graph {
namespace {

struct AddOne {
  double* x;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { x[i] += 1.0; }
};

class CapturedGraphTest : public ::testing::Test {
 protected:
  Tensor<double> numbers(const std::vector<double>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "numbers",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  std::vector<double> host(const Tensor<double>& x) { return to_vector(runtime.compute(), x); }
  void add_one(const Tensor<double>& x) {
    for_each_index(runtime.compute(), "test: add one", x.size(), AddOne{x.data()});
  }
  Runtime runtime;
};

TEST_F(CapturedGraphTest, RunsNothingAtTheCaptureAndEverythingInOrderAtEachLaunch) {
  const auto x = numbers({1, 2}), y = numbers({0, 0}), z = numbers({0});
  const auto graph = CapturedGraph::capture(runtime, "test", [&] {
    add_one(x);
    copy(runtime.compute(), y, x);
    gemm<double>(runtime, Transpose::no, Transpose::no, 1, 1, 2, 1.0, x.data(), 2, y.data(), 1, 0.0, z.data(),
                 1);
    set_zero(runtime.compute(), y);
    add_one(y);
  });
  EXPECT_EQ(host(x), (std::vector<double>{1, 2}));
  EXPECT_EQ(graph.name(), "test");
  // On devices a product may be several nodes.
  if (runs_on_host)
    EXPECT_EQ(graph.operations(), 5);
  else
    EXPECT_GE(graph.operations(), 5);
  graph.launch();
  EXPECT_EQ(host(x), (std::vector<double>{2, 3}));
  EXPECT_EQ(host(y), (std::vector<double>{1, 1}));
  EXPECT_EQ(host(z), (std::vector<double>{13}));
  graph.launch();
  EXPECT_EQ(host(z), (std::vector<double>{25}));
}

TEST_F(CapturedGraphTest, TellsTheObserverEveryOperation) {
  const auto x = numbers({1});
  std::vector<std::string> seen;
  CapturedGraph::capture(
      runtime, "test",
      [&] {
        set_zero(runtime.compute(), x);
        add_one(x);
      },
      [&](const char* operation) { seen.emplace_back(operation); });
  EXPECT_EQ(seen, (std::vector<std::string>{"deltaport: set to zero", "test: add one"}));
}

// Whatever a capture cannot take is named, and leaves the stream usable.
TEST_F(CapturedGraphTest, NamesWhatCannotBeCaptured) {
  const auto x = numbers({1});
  double value = 0;
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"'deltaport: device to host copy' cannot be captured",
       [&] { copy_to_host(runtime.compute(), &value, x); }},
      {"'deltaport: host to device copy' cannot be captured",
       [&] { copy_from_host(runtime.compute(), x, &value); }},
      {"'deltaport: fill' cannot be captured", [&] { fill(runtime.compute(), x, 2.0); }},
      {"'my fence' cannot be captured: it waits for the stream", [&] { runtime.fence("my fence"); }},
      {"a capture was begun inside a capture", [&] { CapturedGraph::capture(runtime, "inner", [] {}); }},
      {"an accident", [] { throw std::runtime_error("an accident"); }},
  };
  for (const auto& [text, bad] : cases) {
    try {
      CapturedGraph::capture(runtime, "segment of the test", [&] {
        add_one(x);
        bad();
      });
      FAIL() << text;
    } catch (const CaptureError& e) {
      const std::string message = e.what();
      EXPECT_NE(message.find(text), std::string::npos) << message;
      EXPECT_NE(message.find("captured segment 'segment of the test'"), std::string::npos) << message;
      EXPECT_NE(message.find("(last operation: 'test: add one')"), std::string::npos) << message;
    }
    EXPECT_FALSE(is_recording());
    EXPECT_EQ(host(x), std::vector<double>{1}) << text;
  }
  add_one(x);
  EXPECT_EQ(host(x), std::vector<double>{2});
}

TEST_F(CapturedGraphTest, TheWorkTimerCannotBeCaptured) {
  runtime.timer().enable(true);
  EXPECT_THROW(
      CapturedGraph::capture(runtime, "timed", [&] { const WorkScope scope(runtime, Work::other, "test"); }),
      CaptureError);
  runtime.timer().enable(false);
}

TEST_F(CapturedGraphTest, RefusesToBeLaunchedEmptyOrInsideACapture) {
  EXPECT_THROW(CapturedGraph().launch(), CaptureError);
  const auto inner = CapturedGraph::capture(runtime, "inner", [] {});
  EXPECT_EQ(inner.operations(), 0);
  inner.launch();
  EXPECT_THROW(CapturedGraph::capture(runtime, "outer", [&] { inner.launch(); }), CaptureError);
}

// A thread that captures leaves other threads alone: they prepare batches and write checkpoints meanwhile.
TEST_F(CapturedGraphTest, OtherThreadsAreNotRecorded) {
  CapturedGraph::capture(runtime, "test", [] {
    bool recording = true;
    std::thread([&] { recording = is_recording(); }).join();
    EXPECT_FALSE(recording);
    EXPECT_TRUE(is_recording());
  });
}

// What transfers to and from the host do where there are threads instead of streams: hand work to another one in one
// operation and wait for it in another.
#ifndef KOKKOS_ENABLE_CUDA
TEST_F(CapturedGraphTest, WorkForOtherThreadsIsHandedOverAtEachLaunch) {
  const auto x = numbers({1}), y = numbers({0});
  std::thread transfer;
  const auto graph = CapturedGraph::capture(runtime, "transfers", [&] {
    add_one(x);
    enqueue("test: begin transfer",
            [&transfer, x, y] { transfer = std::thread([x, y] { *y.data() = *x.data(); }); });
    enqueue("test: wait for transfer", [&transfer] { transfer.join(); });
    add_one(y);
  });
  for (const double expected : {3.0, 4.0}) {
    graph.launch();
    EXPECT_EQ(host(y), std::vector<double>{expected});
  }
}
#endif

}  // namespace
}  // namespace deltaport::graph
