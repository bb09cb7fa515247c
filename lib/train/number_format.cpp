// SPDX-License-Identifier: Apache-2.0
#include "train/number_format.hpp"

#include <cmath>
#include <cstdio>

namespace deltaport::train {

std::string formatted(const char* format, double value) {
  char text[64];
  // The sign of a NaN says nothing; printf would show it.
  std::snprintf(text, sizeof text, format, std::isnan(value) ? std::abs(value) : value);
  return text;
}

std::string with_thousands(std::int64_t value) {
  const std::string text = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  std::string grouped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i > first && (text.size() - i) % 3 == 0) grouped += ',';
    grouped += text[i];
  }
  return grouped;
}

std::string step_time(double seconds) {
  if (!std::isfinite(seconds)) return "-- ms";
  return seconds < 10.0 ? formatted("%.1f ms", seconds * 1e3) : formatted("%.2f s", seconds);
}

std::string duration(double seconds) {
  if (!(seconds >= 0.0) || seconds > 1e9) return "--";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  char text[48];
  if (s < 60)
    std::snprintf(text, sizeof text, "%ds", static_cast<int>(s));
  else if (s < 3600)
    std::snprintf(text, sizeof text, "%dm%02ds", static_cast<int>(s / 60), static_cast<int>(s % 60));
  else if (s < 86400)
    std::snprintf(text, sizeof text, "%dh%02dm", static_cast<int>(s / 3600), static_cast<int>(s % 3600 / 60));
  else
    std::snprintf(text, sizeof text, "%dd%02dh", static_cast<int>(s / 86400),
                  static_cast<int>(s % 86400 / 3600));
  return text;
}

std::string gib(std::int64_t bytes) {
  return formatted("%.2f", static_cast<double>(bytes) / (1 << 30));
}

std::string with_si_prefix(double value) {
  static constexpr const char* prefixes[] = {"", " k", " M", " G", " T"};
  int i = 0;
  while (std::abs(value) >= 999.5 && i < 4) {
    value /= 1000.0;
    ++i;
  }
  return formatted(i == 0 ? "%.0f" : "%.3g", value) + prefixes[i];
}

}  // namespace deltaport::train
