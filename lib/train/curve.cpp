// SPDX-License-Identifier: Apache-2.0
#include "train/curve.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deltaport::train {
namespace {

std::vector<Point> moving_average(const std::vector<Point>& points, std::size_t half) {
  std::vector<double> sums(points.size() + 1, 0.0), counts(points.size() + 1, 0.0);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const bool finite = std::isfinite(points[i].y);
    sums[i + 1] = sums[i] + (finite ? points[i].y : 0.0);
    counts[i + 1] = counts[i] + (finite ? 1.0 : 0.0);
  }
  std::vector<Point> averaged(points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i].y)) continue;
    const std::size_t reach = std::min({half, i, points.size() - 1 - i});
    averaged[i].y = (sums[i + reach + 1] - sums[i - reach]) / (counts[i + reach + 1] - counts[i - reach]);
  }
  return averaged;
}

/// Appends the points at `chosen` in ascending order, each once.
void append(std::vector<Point>& out, const std::vector<Point>& points, std::vector<std::size_t> chosen) {
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  for (const std::size_t i : chosen) out.push_back(points[i]);
}

}  // namespace

std::vector<Point> smooth(const std::vector<Point>& points, std::size_t window) {
  const std::size_t half = window / 2;
  return half == 0 ? points : moving_average(moving_average(points, half), half);
}

std::size_t smoothing_window(std::size_t points) {
  return std::clamp<std::size_t>(points / 40, 1, 2001);
}

std::vector<Point> decimate(const std::vector<Point>& points, std::size_t bins) {
  if (points.size() <= 4 * bins || bins == 0) return points;
  const double begin = points.front().x, width = (points.back().x - begin) / static_cast<double>(bins);
  std::vector<Point> out;
  for (std::size_t first = 0; first < points.size();) {
    const double bin = std::floor((points[first].x - begin) / width);
    std::size_t last = first, low = first, high = first, gap = first;
    for (std::size_t i = first; i < points.size() && std::floor((points[i].x - begin) / width) == bin; ++i) {
      last = i;
      if (!std::isfinite(points[i].y)) gap = i;
      if (!(points[low].y <= points[i].y)) low = i;
      if (!(points[high].y >= points[i].y)) high = i;
    }
    append(out, points, {first, low, high, gap, last});
    first = last + 1;
  }
  return out;
}

}  // namespace deltaport::train
