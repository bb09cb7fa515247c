// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace deltaport::train {

struct Point {
  double x;
  double y;  ///< NaN: a gap
};

/// Two passes of a centred moving average over `window` points (a triangular weight). Values that are not
/// finite are left out of the averages and stay gaps. The window shrinks at the ends so that it stays
/// centred.
std::vector<Point> smooth(const std::vector<Point>& points, std::size_t window);

/// A window that takes the noise out and keeps the shape: about a fortieth of the points.
std::size_t smoothing_window(std::size_t points);

/// At most about 4 points per bin of `bins` equal parts of the x range: first, lowest, highest and last of
/// each. Keeps the outline of a curve that has more points than pixels. Points must ascend in x.
std::vector<Point> decimate(const std::vector<Point>& points, std::size_t bins);

}  // namespace deltaport::train
