// SPDX-License-Identifier: Apache-2.0
#include "deltaport/comm/placement.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "deltaport/core/error.hpp"

namespace deltaport {

int threads_for_rank(const std::vector<std::vector<int>>& cores_by_local_rank, int mine, double cpu_limit) {
  DELTAPORT_VALIDATE(mine >= 0 && mine < static_cast<int>(cores_by_local_rank.size()), CommError,
                     "local rank ", mine, " of ", cores_by_local_rank.size());
  const auto& own = cores_by_local_rank[static_cast<std::size_t>(mine)];
  const auto overlaps = [&own](const std::vector<int>& cores) {
    return std::any_of(cores.begin(), cores.end(),
                       [&own](int core) { return std::find(own.begin(), own.end(), core) != own.end(); });
  };
  const auto sharers = std::count_if(cores_by_local_rank.begin(), cores_by_local_rank.end(), overlaps);
  double threads =
      static_cast<double>(own.size()) / static_cast<double>(std::max<std::ptrdiff_t>(sharers, 1));
  threads = std::min(threads, cpu_limit / static_cast<double>(cores_by_local_rank.size()));
  return std::max(1, static_cast<int>(std::floor(threads)));
}

DevicePlacement place_devices(const std::vector<std::vector<std::string>>& visible) {
  DevicePlacement placement;
  std::map<std::string, std::vector<std::size_t>> ranks_of;  // by device identity
  for (std::size_t rank = 0; rank < visible.size(); ++rank) {
    const auto& devices = visible[rank];
    const auto fewer = [&](const std::string& a, const std::string& b) {
      return ranks_of[a].size() < ranks_of[b].size();
    };
    const auto chosen = std::min_element(devices.begin(), devices.end(), fewer);
    placement.device_of_rank.push_back(chosen == devices.end() ? -1
                                                               : static_cast<int>(chosen - devices.begin()));
    if (chosen != devices.end()) ranks_of[*chosen].push_back(rank);
  }
  for (const auto& [device, ranks] : ranks_of) {
    if (ranks.size() < 2) continue;
    placement.warning += placement.warning.empty() ? "" : "; ";
    placement.warning += "device " + device + " is shared by local ranks";
    for (const std::size_t rank : ranks) placement.warning += ' ' + std::to_string(rank);
  }
  return placement;
}

}  // namespace deltaport
