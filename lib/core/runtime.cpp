// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/runtime.hpp"

#include <optional>

#ifdef KOKKOS_ENABLE_CUDA
#include <cublas_v2.h>
#include <cuda_runtime.h>
#endif

namespace deltaport {

#ifdef KOKKOS_ENABLE_CUDA
namespace {
void check(cudaError_t status, const char* what) {
  DELTAPORT_VALIDATE(status == cudaSuccess, DeviceError, what, ": ", cudaGetErrorString(status));
}
void check(cublasStatus_t status, const char* what) {
  DELTAPORT_VALIDATE(status == CUBLAS_STATUS_SUCCESS, DeviceError, what, ": ", cublasGetStatusString(status));
}
}  // namespace

struct Runtime::Impl {
  explicit Impl(const RuntimeOptions& options) : arena(options.arena) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating the compute stream");
    exec.emplace(stream);
    check(cublasCreate(&blas), "creating the cuBLAS handle");
    check(cublasSetStream(blas, stream), "cublasSetStream");
    // Full float32 products: TF32 would change results by 1e-3. The workspace is ours, so that cuBLAS
    // allocates nothing during a step and its choice of algorithm never depends on what happens to be free.
    check(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
    constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
    workspace = arena.allocate("cublas workspace", workspace_bytes);
    check(cublasSetWorkspace(blas, workspace->data(), workspace_bytes), "cublasSetWorkspace");
    timer.emplace(*exec);
  }
  ~Impl() {
    exec->fence("deltaport: runtime shutdown");
    cublasDestroy(blas);
    timer.reset();
    exec.reset();
    cudaStreamDestroy(stream);
  }
  Arena arena;
  cudaStream_t stream = nullptr;
  std::optional<ExecutionSpace> exec;
  cublasHandle_t blas = nullptr;
  std::shared_ptr<Storage> workspace;
  std::optional<WorkTimer> timer;
};

void* Runtime::blas_handle() const {
  return impl_->blas;
}

std::size_t Runtime::driver_used_bytes() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}
#else
struct Runtime::Impl {
  explicit Impl(const RuntimeOptions& options)
      : arena(options.arena), exec(ExecutionSpace{}), timer(std::in_place, *exec) {}
  Arena arena;
  std::optional<ExecutionSpace> exec;
  std::optional<WorkTimer> timer;
};

void* Runtime::blas_handle() const {
  return nullptr;
}

std::size_t Runtime::driver_used_bytes() const {
  return 0;
}
#endif

Runtime::Runtime(RuntimeOptions options) {
  DELTAPORT_VALIDATE(Kokkos::is_initialized(), Error, "create the Runtime after Kokkos::initialize");
  impl_ = std::make_unique<Impl>(options);
}
Runtime::~Runtime() = default;

const ExecutionSpace& Runtime::compute() const {
  return *impl_->exec;
}
Arena& Runtime::arena() {
  return impl_->arena;
}
WorkTimer& Runtime::timer() {
  return *impl_->timer;
}
void Runtime::fence(const char* why) const {
  require_not_recording(why, "it waits for the stream");
  impl_->exec->fence(why);
}

WorkScope::WorkScope(Runtime& runtime, Work kind, const char* region) : runtime_(runtime) {
  Kokkos::Profiling::pushRegion(region);
  runtime_.timer().push(kind);
}
WorkScope::~WorkScope() {
  runtime_.timer().pop();
  Kokkos::Profiling::popRegion();
}

}  // namespace deltaport
