// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "train/axis.hpp"
#include "train/curve.hpp"

namespace deltaport::train {

enum class Anchor { start, middle, end };

/// Collects elements of one SVG picture. Coordinates are pixels from the upper left corner, written with two
/// decimals.
class Svg {
 public:
  Svg(int width, int height, std::string_view description);

  void text(double x, double y, std::string_view content, std::string_view css_class,
            Anchor anchor = Anchor::start);
  /// Turned by -90 degrees around (x, y).
  void vertical_text(double x, double y, std::string_view content, std::string_view css_class);
  void line(double x1, double y1, double x2, double y2, std::string_view css_class);
  void circle(double x, double y, double radius, std::string_view css_class);
  /// A polyline with gaps where y is not finite (or not positive on a logarithmic axis); lonely points become
  /// dots.
  void curve(const std::vector<Point>& points, const Axis& x, const Axis& y, std::string_view css_class);
  /// Everything until end_clip() is cut to the rectangle.
  void begin_clip(double x, double y, double width, double height);
  void end_clip();

  std::string str() const;

 private:
  std::string body_;
  int clips_ = 0;
};

/// Text with the characters that XML reserves replaced, and control characters left out.
std::string escaped(std::string_view text);

}  // namespace deltaport::train
