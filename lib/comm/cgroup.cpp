// SPDX-License-Identifier: Apache-2.0
// Limits of the control group this process is in, versions 1 and 2. A limit may sit at any level, so all are
// looked at.
#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "deltaport/comm/placement.hpp"

namespace deltaport {
namespace {

/// Path of the process in the hierarchy of `controller` (version 1) or in the unified one (empty controller).
std::string group_of(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = ',' + line.substr(first + 1, second - first - 1) + ',';
    if (names == ',' + controller + ',' ||
        (!controller.empty() && names.find(',' + controller + ',') != std::string::npos))
      return line.substr(second + 1);
  }
  return "/";
}

/// Calls read(directory) for the group and everything above it.
template <class Read>
void each_level(const std::string& root, std::string group, const Read& read) {
  while (true) {
    read(root + (group == "/" ? "" : group));
    if (group.empty() || group == "/") return;
    group.resize(std::max<std::size_t>(group.find_last_of('/'), 1));  // the parent, at last "/"
  }
}

double read_number(const std::string& path, double otherwise) {
  std::ifstream file(path);
  std::string word;
  double value = 0.0;
  if (!(file >> word) || !(std::istringstream(word) >> value)) return otherwise;  // "max" is not a number
  return value;
}

}  // namespace

double cgroup_cpu_limit() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double limit = infinity;
  each_level("/sys/fs/cgroup", group_of(""), [&](const std::string& level) {
    std::ifstream file(level + "/cpu.max");
    std::string quota;
    double period = 0.0;
    if (file >> quota >> period && quota != "max" && period > 0.0)
      limit = std::min(limit, std::stod(quota) / period);
  });
  each_level("/sys/fs/cgroup/cpu", group_of("cpu"), [&](const std::string& level) {
    const double quota = read_number(level + "/cpu.cfs_quota_us", -1.0);
    const double period = read_number(level + "/cpu.cfs_period_us", 0.0);
    if (quota > 0.0 && period > 0.0) limit = std::min(limit, quota / period);
  });
  return limit;
}

std::size_t cgroup_memory_limit_bytes() {
  constexpr double none = 9e18;  // version 1 writes a number near 2^63 for "no limit"
  double limit = none;
  const auto take = [&](const std::string& path) { limit = std::min(limit, read_number(path, none)); };
  each_level("/sys/fs/cgroup", group_of(""), [&](const std::string& level) { take(level + "/memory.max"); });
  each_level("/sys/fs/cgroup/memory", group_of("memory"),
             [&](const std::string& level) { take(level + "/memory.limit_in_bytes"); });
  return limit >= none ? 0 : static_cast<std::size_t>(limit);
}

}  // namespace deltaport
