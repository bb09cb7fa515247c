// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "deltaport/core/error.hpp"
#include "offload/driver.hpp"

namespace deltaport::offload {
namespace {

/// Makes a device the thread's current one, and puts the earlier one back: a transfer thread that never chose a device
/// would otherwise open a context on the first.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    (void)cudaGetDevice(&before_);
    if (before_ != device) (void)cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

class CudaDriver : public Driver {
 public:
  CudaDriver() {
    int count = 0;
    present_ =
        cudaGetDeviceCount(&count) == cudaSuccess && count > 0 && cudaGetDevice(&device_) == cudaSuccess;
    if (!present_) (void)cudaGetLastError();  // no device is no error here
  }
  bool present() const override { return present_; }

  int numa_node(const std::string& pci) const override {
#if CUDART_VERSION >= 12020
    int device = 0, node = -1;
    if (present_ && cudaDeviceGetByPCIBusId(&device, pci.c_str()) == cudaSuccess &&
        cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device) == cudaSuccess)
      return node;
    (void)cudaGetLastError();
#else
    (void)pci;
#endif
    return -1;
  }

  std::string register_pages(void* data, std::size_t bytes) override {
    const CurrentDevice current(device_);
    const cudaError_t status = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
    if (status == cudaSuccess) return {};
    (void)cudaGetLastError();  // the message carries it; the next launch shall not
    return concat("cudaHostRegister: ", cudaGetErrorString(status));
  }

  void unregister_pages(void* data) noexcept override {
    const CurrentDevice current(device_);
    if (cudaHostUnregister(data) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  bool present_ = false;
  int device_ = 0;
};

}  // namespace

std::shared_ptr<Driver> make_driver() {
  return std::make_shared<CudaDriver>();
}

}  // namespace deltaport::offload
