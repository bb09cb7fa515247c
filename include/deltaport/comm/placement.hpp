// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "deltaport/core/machine.hpp"

namespace deltaport {

/// Threads for one rank: its cores, divided by the number of ranks on the node whose cores overlap with them,
/// and no more than its part of the control group's time; at least 1. `cores_by_local_rank[mine]` are the
/// rank's own cores.
int threads_for_rank(const std::vector<std::vector<int>>& cores_by_local_rank, int mine, double cpu_limit);

/// One accelerator that this process sees.
struct DeviceInfo {
  int index = 0;  ///< among the visible ones
  std::string name;
  std::string compute_capability;  ///< "9.0"
  std::size_t memory_bytes = 0;
  std::string pci;   ///< "0000:1b:00.0"
  std::string uuid;  ///< tells devices (and slices of one) apart
};
/// Empty on host builds.
std::vector<DeviceInfo> visible_devices();
/// "CUDA 13.0, driver 13.0"; empty on host builds.
std::string device_runtime();

struct DevicePlacement {
  std::vector<int>
      device_of_rank;   ///< by local rank: index among the devices that the rank sees; -1: it sees none
  std::string warning;  ///< names devices that several ranks share; empty when all is well
};
/// Each rank takes, of the devices that it sees (`visible[local rank]`, identities), the one with the fewest
/// ranks so far; the first of equals. Right for launchers that show all devices to all ranks and for those
/// that show each its own.
DevicePlacement place_devices(const std::vector<std::vector<std::string>>& visible);

}  // namespace deltaport
