// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/process_age.hpp"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace deltaport {

std::optional<double> process_age_seconds() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // Fields are parted by blanks, but the second, the program's name in brackets, may hold any character.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(bracket + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double start_ticks = 0.0;
  timespec now{};
  if (!(fields >> start_ticks) || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return std::nullopt;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace deltaport
