// SPDX-License-Identifier: Apache-2.0
#include "train/axis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/number_format.hpp"

namespace deltaport::train {
namespace {

/// 1, 2 or 5 times a power of ten, close to `value`.
double round_step(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  const double factor = value / power;
  return power * (factor < 1.5 ? 1.0 : factor < 3.5 ? 2.0 : factor < 7.5 ? 5.0 : 10.0);
}

/// "5e-6", "1.5e+20"
std::string with_exponent(double value) {
  std::string text = formatted("%.3g", value);
  const std::size_t exponent = text.find('e');
  if (exponent == std::string::npos) return text;
  while (text.size() > exponent + 3 && text[exponent + 2] == '0') text.erase(exponent + 2, 1);
  return text;
}

/// As many digits as tell neighbours `step` apart; large and small numbers with prefix or exponent.
std::string tick_label(double value, double step) {
  const double size = std::max(std::abs(value), step);
  if (value == 0.0) return "0";
  if (size < 1e-4 || size >= 1e15) return with_exponent(value);
  static constexpr const char* prefixes[] = {"", "k", "M", "G", "T"};
  int prefix = 0;
  // Four digits are still easy to read: "5000", but "10k" and "2M".
  while (std::abs(value) >= (prefix == 0 ? 1e4 : 1e3) * (1.0 - 1e-9) && prefix < 4) {
    value /= 1e3;
    step /= 1e3;
    ++prefix;
  }
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  const std::string format = "%." + std::to_string(digits) + "f";
  return formatted(format.c_str(), value) + prefixes[prefix];
}

double tick_step(double low, double high, int about, bool whole_numbers) {
  const double step = round_step((high - low) / std::max(about, 1));
  return whole_numbers ? std::max(step, 1.0) : step;
}

std::vector<Tick> ticks_at(double step, double low, double high) {
  std::vector<Tick> ticks;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  for (double i = first; i <= last && ticks.size() < 100; ++i)
    ticks.push_back({i * step, tick_label(i * step, step)});
  return ticks;
}

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
};

Extent extent_of(const std::vector<double>& values) {
  Extent extent;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    extent.low = std::min(extent.low, value);
    extent.high = std::max(extent.high, value);
  }
  if (extent.low > extent.high) extent = {0.0, 1.0};
  return extent;
}

Axis logarithmic_axis(Extent extent, const AxisRange& range) {
  Axis axis{Scale::logarithmic, extent.low, extent.high, range.pixel_low, range.pixel_high, {}};
  const double margin = std::pow(extent.high / extent.low, 0.04);
  axis.low /= margin;
  axis.high *= margin;
  axis.ticks = logarithmic_ticks(axis.low, axis.high, range.ticks);
  return axis;
}

}  // namespace

double Axis::pixel(double value) const {
  double part = scale == Scale::linear ? (value - low) / (high - low)
                                       : (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  if (!std::isfinite(part)) part = 0.0;
  return pixel_low + std::clamp(part, -1.0, 2.0) * (pixel_high - pixel_low);
}

std::vector<Tick> linear_ticks(double low, double high, int about, bool whole_numbers) {
  return ticks_at(tick_step(low, high, about, whole_numbers), low, high);
}

std::vector<Tick> logarithmic_ticks(double low, double high, int about) {
  const double decades = std::log10(high / low);
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / std::max(about, 1))));
  std::vector<double> factors{1.0};
  if (decades * 3.0 <= about * 1.5) factors = {1.0, 2.0, 5.0};
  std::vector<Tick> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(low))); power <= std::ceil(std::log10(high));
       ++power) {
    if (power % stride != 0) continue;
    for (const double factor : factors) {
      const double value = factor * std::pow(10.0, power);
      if (value >= low * (1.0 - 1e-9) && value <= high * (1.0 + 1e-9))
        ticks.push_back({value, tick_label(value, value)});
    }
  }
  return ticks;
}

Axis make_axis(const std::vector<double>& values, const AxisRange& range) {
  Extent extent = extent_of(values);
  if (range.may_be_logarithmic && extent.low > 0.0 && extent.high > 50.0 * extent.low)
    return logarithmic_axis(extent, range);
  if (range.from_zero) extent = {std::min(extent.low, 0.0), std::max(extent.high, 0.0)};
  if (!(extent.high - extent.low > 1e-12 * std::max(std::abs(extent.low), std::abs(extent.high)))) {
    const double room = extent.low == 0.0 ? 1.0 : 0.1 * std::abs(extent.low);
    extent = {extent.low - (range.from_zero || range.whole_numbers ? 0.0 : room),
              extent.high + (range.whole_numbers ? 1.0 : room)};
  }
  Axis axis{Scale::linear, extent.low, extent.high, range.pixel_low, range.pixel_high, {}};
  const double step = tick_step(extent.low, extent.high, range.ticks, range.whole_numbers);
  if (range.extend_to_ticks) {
    axis.low = std::floor(extent.low / step + 1e-9) * step;
    axis.high = std::ceil(extent.high / step - 1e-9) * step;
  }
  axis.ticks = ticks_at(step, axis.low, axis.high);
  return axis;
}

}  // namespace deltaport::train
