// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace deltaport::train {

struct Tick {
  double value;
  std::string label;
};

enum class Scale { linear, logarithmic };

/// Maps values to pixels and knows its ticks.
struct Axis {
  Scale scale = Scale::linear;
  double low = 0.0;   ///< value at pixel_low
  double high = 1.0;  ///< value at pixel_high
  double pixel_low = 0.0;
  double pixel_high = 1.0;
  std::vector<Tick> ticks;

  double pixel(double value) const;
};

struct AxisRange {
  double pixel_low;
  double pixel_high;
  int ticks = 6;                    ///< about so many
  bool from_zero = false;           ///< begin at 0 (linear)
  bool whole_numbers = false;       ///< no ticks between integers
  bool may_be_logarithmic = false;  ///< become logarithmic for positive values over a factor of 50
  bool extend_to_ticks = true;      ///< else the ends are the smallest and largest value
};

/// An axis for all finite ones of `values`, with ticks at 1, 2 or 5 times powers of ten.
Axis make_axis(const std::vector<double>& values, const AxisRange& range);

/// Ticks inside [low, high] of a linear axis, at steps of 1, 2 or 5 times a power of ten.
std::vector<Tick> linear_ticks(double low, double high, int about, bool whole_numbers);
/// Ticks of a logarithmic axis: powers of ten, with 2 and 5 between them where there is room.
std::vector<Tick> logarithmic_ticks(double low, double high, int about);

}  // namespace deltaport::train
