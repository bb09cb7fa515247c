// SPDX-License-Identifier: Apache-2.0
// Limits of the control group this process is in, versions 1 and 2. A limit may sit at any level, so all are
// looked at.
#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "deltaport/core/machine.hpp"

namespace deltaport {
namespace {

/// Path of the process in the hierarchy of `controller` (version 1) or in the unified one (empty controller).
std::string group_of(const CgroupFiles& files, const std::string& controller) {
  std::ifstream file(files.self);
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

/// The number after `name` in a file of "name number" lines; 0 when it is not there.
double read_entry(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  for (double value = 0.0; file >> word >> value;)
    if (word == name) return value;
  return 0.0;
}

}  // namespace

double cgroup_cpu_limit(const CgroupFiles& files) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double limit = infinity;
  each_level(files.root, group_of(files, ""), [&](const std::string& level) {
    std::ifstream file(level + "/cpu.max");
    std::string quota;
    double period = 0.0;
    if (file >> quota >> period && quota != "max" && period > 0.0)
      limit = std::min(limit, std::stod(quota) / period);
  });
  each_level(files.root + "/cpu", group_of(files, "cpu"), [&](const std::string& level) {
    const double quota = read_number(level + "/cpu.cfs_quota_us", -1.0);
    const double period = read_number(level + "/cpu.cfs_period_us", 0.0);
    if (quota > 0.0 && period > 0.0) limit = std::min(limit, quota / period);
  });
  return limit;
}

CgroupMemory cgroup_memory(const CgroupFiles& files) {
  constexpr double none = 9e18;  // version 1 writes a number near 2^63 for "no limit"
  CgroupMemory memory;
  const auto take = [&](const std::string& level, const char* limit_name, const char* usage_name,
                        const std::string& prefix) {
    const double limit = read_number(level + '/' + limit_name, none);
    if (limit >= none) return;
    const double cache = read_entry(level + "/memory.stat", prefix + "active_file") +
                         read_entry(level + "/memory.stat", prefix + "inactive_file");
    const double used = std::max(0.0, read_number(level + '/' + usage_name, 0.0) - cache);
    const auto available = static_cast<std::size_t>(std::max(0.0, limit - used));
    if (memory.file.empty() || static_cast<std::size_t>(limit) < memory.limit_bytes)
      memory.limit_bytes = static_cast<std::size_t>(limit);
    if (memory.file.empty() || available < memory.available_bytes) {
      memory.available_bytes = available;
      memory.file = level + '/' + limit_name;
    }
  };
  each_level(files.root, group_of(files, ""),
             [&](const std::string& level) { take(level, "memory.max", "memory.current", ""); });
  each_level(files.root + "/memory", group_of(files, "memory"), [&](const std::string& level) {
    take(level, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
  });
  return memory;
}

}  // namespace deltaport
