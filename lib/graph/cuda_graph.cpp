// SPDX-License-Identifier: Apache-2.0
// A captured graph on CUDA: our own capture of our own stream in thread-local mode, so that calls of other threads
// (the loader, a checkpoint's writer) neither break it nor are taken into it.
#include <cuda_runtime.h>

#include "graph/capture_log.hpp"

namespace deltaport::graph {
namespace {

class StreamLog : public CaptureLog {
 public:
  using CaptureLog::CaptureLog;
  void keep(std::function<void()>) override {}
};

void check(cudaError_t status, const std::string& name, const char* what) {
  DELTAPORT_VALIDATE(status == cudaSuccess, CaptureError, "captured segment '", name, "': ", what, ": ",
                     cudaGetErrorString(status));
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDeleter>;

// Ends the capture whatever happened in it: a stream left capturing would fail every later call.
Graph record(cudaStream_t stream, const std::string& name, StreamLog& log,
             const std::function<void()>& body) {
  DELTAPORT_VALIDATE(!is_recording(), CaptureError, "a capture was begun inside a capture");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), name,
        "the capture could not begin");
  const std::string problem = log.run(body);
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  Graph graph(captured);
  if (problem.empty() && ended == cudaSuccess) return graph;
  cudaGetLastError();  // the capture's error must not be found by the next call
  DELTAPORT_VALIDATE(problem.empty(), CaptureError, problem);
  const char* hint =
      ended == cudaErrorStreamCaptureUnjoined ? "; a stream forked off by an event was not joined" : "";
  throw CaptureError(
      concat("captured segment '", name, "': ", cudaGetErrorString(ended), hint, " (", log.place(), ")"));
}

}  // namespace

struct CapturedGraph::Impl {
  std::string name;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::size_t nodes = 0;
  std::size_t driver_bytes = 0;

  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }
};

CapturedGraph CapturedGraph::capture(Runtime& runtime, const std::string& name,
                                     const std::function<void()>& body, const OperationObserver& observe) {
  auto impl = std::make_shared<Impl>();
  impl->name = name;
  impl->stream = runtime.compute().cuda_stream();
  StreamLog log(name, observe);
  const Graph graph = record(impl->stream, name, log, body);
  check(cudaGraphGetNodes(graph.get(), nullptr, &impl->nodes), name, "its nodes could not be counted");
  const std::size_t before = free_bytes();
  check(cudaGraphInstantiate(&impl->executable, graph.get(), 0), name, "the graph could not be instantiated");
  check(cudaGraphUpload(impl->executable, impl->stream), name, "the graph could not be uploaded");
  const std::size_t after = free_bytes();
  impl->driver_bytes = before > after ? before - after : 0;
  CapturedGraph result;
  result.impl_ = std::move(impl);
  return result;
}

void CapturedGraph::launch() const {
  DELTAPORT_VALIDATE(impl_ != nullptr, CaptureError, "an empty captured graph was launched");
  require_not_recording(impl_->name.c_str(), "a captured graph cannot be part of another");
  Kokkos::Profiling::pushRegion(impl_->name);
  const cudaError_t status = cudaGraphLaunch(impl_->executable, impl_->stream);
  Kokkos::Profiling::popRegion();
  DELTAPORT_VALIDATE(status == cudaSuccess, DeviceError, "launching the captured segment '", impl_->name,
                     "': ", cudaGetErrorString(status));
}

const std::string& CapturedGraph::name() const {
  return impl_->name;
}
std::int64_t CapturedGraph::operations() const {
  return static_cast<std::int64_t>(impl_->nodes);
}
std::size_t CapturedGraph::driver_bytes() const {
  return impl_->driver_bytes;
}

}  // namespace deltaport::graph
