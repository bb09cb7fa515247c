// SPDX-License-Identifier: Apache-2.0
#include <Kokkos_Core.hpp>

#include "deltaport/comm/placement.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <cuda_runtime.h>

#include <cstdio>
#endif

namespace deltaport {

#ifdef KOKKOS_ENABLE_CUDA
namespace {

std::string hex_of(const cudaUUID_t& uuid) {
  std::string text;
  char digits[3];
  for (const char byte : uuid.bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += digits;
  }
  return text;
}

}  // namespace

// Reads properties only: creates no context on any device.
std::vector<DeviceInfo> visible_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    char pci[32];
    std::snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID,
                  properties.pciDeviceID);
    devices.push_back({i, properties.name,
                       std::to_string(properties.major) + '.' + std::to_string(properties.minor),
                       properties.totalGlobalMem, pci, hex_of(properties.uuid)});
  }
  return devices;
}

std::string device_runtime() {
  int runtime = 0, driver = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&driver);
  const auto text = [](int version) {
    return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
  };
  return "CUDA " + text(runtime) + ", driver " + (driver > 0 ? text(driver) : "none");
}
#else
std::vector<DeviceInfo> visible_devices() {
  return {};
}
std::string device_runtime() {
  return {};
}
#endif

}  // namespace deltaport
