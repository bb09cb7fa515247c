// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/report.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>

#include "data/output_file.hpp"
#include "deltaport/core/error.hpp"
#include "train/number_format.hpp"
#include "train/svg.hpp"

namespace deltaport {
namespace {

using train::Anchor;
using train::Axis;
using train::AxisRange;
using train::Point;
using train::Svg;

// Pixels.
constexpr int width = 960, height = 720;
constexpr double left = 68, right = 892;

struct Box {
  double left, top, right, bottom;
};

template <class Get>
std::vector<Point> series(const MetricsHistory& history, const Get& get) {
  std::vector<Point> points;
  for (const StepMetrics& m : history.steps) points.push_back({static_cast<double>(m.step), get(m)});
  return points;
}

std::vector<Point> validation_series(const MetricsHistory& history) {
  std::vector<Point> points;
  for (const EvalMetrics& m : history.evaluations) points.push_back({static_cast<double>(m.step), m.loss});
  return points;
}

std::vector<double> heights_of(const std::vector<Point>& points) {
  std::vector<double> values;
  for (const Point& p : points) values.push_back(p.y);
  return values;
}

/// Half a pixel's worth of points per bin: more cannot be seen.
std::vector<Point> fitting(const std::vector<Point>& points, const Box& box) {
  return train::decimate(points, static_cast<std::size_t>(box.right - box.left));
}

/// On a logarithmic axis the logarithms are averaged: a spike would otherwise hide everything near it.
std::vector<Point> smoothed(const std::vector<Point>& points, std::size_t window, const Axis& y) {
  if (y.scale == train::Scale::linear) return train::smooth(points, window);
  std::vector<Point> logarithms(points);
  for (Point& p : logarithms) p.y = std::log(p.y);
  logarithms = train::smooth(logarithms, window);
  for (Point& p : logarithms) p.y = std::exp(p.y);
  return logarithms;
}

void draw_frame(Svg& svg, const Box& box, const Axis& x, const Axis& y) {
  for (const auto& tick : y.ticks) {
    svg.line(box.left, y.pixel(tick.value), box.right, y.pixel(tick.value), "grid");
    svg.text(box.left - 8, y.pixel(tick.value) + 4, tick.label, "tick", Anchor::end);
  }
  for (const auto& tick : x.ticks) {
    svg.line(x.pixel(tick.value), box.bottom, x.pixel(tick.value), box.bottom + 4, "frame");
    svg.text(x.pixel(tick.value), box.bottom + 18, tick.label, "tick", Anchor::middle);
  }
  svg.line(box.left, box.bottom, box.right, box.bottom, "frame");
}

Axis step_axis(const MetricsHistory& history, const Box& box, int ticks) {
  std::vector<double> steps{0.0};
  if (!history.steps.empty()) steps.push_back(static_cast<double>(history.steps.back().step));
  if (!history.evaluations.empty()) steps.push_back(static_cast<double>(history.evaluations.back().step));
  AxisRange range{box.left, box.right, ticks};
  range.whole_numbers = true;
  range.extend_to_ticks = false;
  return train::make_axis(steps, range);
}

/// Bits per byte, at the right: the same axis in another unit.
void draw_bits_axis(Svg& svg, const Box& box, const Axis& y, double bytes_per_token) {
  const auto low = bits_per_byte(y.low, bytes_per_token), high = bits_per_byte(y.high, bytes_per_token);
  const auto ticks = y.scale == train::Scale::linear ? train::linear_ticks(low, high, 6, false)
                                                     : train::logarithmic_ticks(low, high, 6);
  for (const auto& tick : ticks) {
    const double loss = tick.value / bits_per_byte(1.0, bytes_per_token);
    svg.line(box.right, y.pixel(loss), box.right + 4, y.pixel(loss), "frame");
    svg.text(box.right + 8, y.pixel(loss) + 4, tick.label, "tick");
  }
  svg.line(box.right, box.top, box.right, box.bottom, "frame");
  svg.vertical_text(box.right + 50, (box.top + box.bottom) / 2, "bits per byte", "value");
}

/// Crosses at the upper edge, one per bunch of neighbouring steps.
std::int64_t mark_non_finite(Svg& svg, const Box& box, const Axis& x, const std::vector<Point>& losses) {
  std::int64_t count = 0;
  double drawn_at = -std::numeric_limits<double>::infinity();
  for (const Point& p : losses) {
    if (std::isfinite(p.y)) continue;
    ++count;
    const double at = x.pixel(p.x);
    if (at - drawn_at < 8) continue;
    drawn_at = at;
    svg.line(at - 4, box.top + 2, at + 4, box.top + 10, "bad");
    svg.line(at - 4, box.top + 10, at + 4, box.top + 2, "bad");
  }
  return count;
}

class Legend {
 public:
  Legend(Svg& svg, double x, double y) : svg_(svg), x_(x), y_(y) {}
  void add(const std::string& label, const char* css_class, const char* dot_class = nullptr) {
    svg_.line(x_, y_ - 4, x_ + 22, y_ - 4, css_class);
    if (dot_class != nullptr) svg_.circle(x_ + 11, y_ - 4, 3.5, dot_class);
    svg_.text(x_ + 28, y_, label, "value");
    x_ += 28 + 6.6 * static_cast<double>(label.size()) + 22;
  }

 private:
  Svg& svg_;
  double x_, y_;
};

void draw_loss(Svg& svg, const MetricsHistory& history) {
  const Box box{left, 108, right, 440};
  const auto losses = series(history, [](const StepMetrics& m) { return m.loss; });
  const auto validation = validation_series(history);
  const std::size_t window = train::smoothing_window(losses.size());

  std::vector<double> values = heights_of(losses);
  for (const Point& p : validation) values.push_back(p.y);
  AxisRange range{box.bottom, box.top, 5};
  range.may_be_logarithmic = true;
  const Axis y = train::make_axis(values, range), x = step_axis(history, box, 10);
  draw_frame(svg, box, x, y);
  svg.vertical_text(left - 46, (box.top + box.bottom) / 2, "loss (nats per token)", "value");
  svg.text((left + right) / 2, box.bottom + 36, "step", "value", Anchor::middle);
  if (history.run.bytes_per_token > 0.0) draw_bits_axis(svg, box, y, history.run.bytes_per_token);

  Legend legend(svg, left, box.top - 14);
  svg.begin_clip(box.left - 4, box.top - 4, box.right - box.left + 8, box.bottom - box.top + 8);
  if (window > 1) svg.curve(fitting(losses, box), x, y, "raw");
  svg.curve(fitting(smoothed(losses, window, y), box), x, y, "smooth");
  svg.curve(validation, x, y, "valid");
  for (const Point& p : validation)
    if (std::isfinite(p.y) && validation.size() <= 60)
      svg.circle(x.pixel(p.x), y.pixel(p.y), 3.5, "valid-dot");
  const std::int64_t bad = mark_non_finite(svg, box, x, losses);
  svg.end_clip();

  if (window > 1) legend.add("training, each step", "raw");
  if (!losses.empty())
    legend.add(window > 1 ? "training, average of " + std::to_string(window) + " steps" : "training",
               "smooth");
  if (!validation.empty()) legend.add("validation", "valid", "valid-dot");
  if (bad > 0)
    legend.add("not finite: " + train::with_thousands(bad) + (bad == 1 ? " step" : " steps"), "bad");
}

enum class Noise { none, smoothed };

void draw_small(Svg& svg, const MetricsHistory& history, int place, const char* title,
                std::vector<Point> points, const AxisRange& wishes, Noise noise) {
  const double gap = 64, panel = (right - left - 2 * gap) / 3;
  const double from = left + place * (panel + gap);
  const Box box{from, 540, from + panel, 668};
  AxisRange range = wishes;
  range.pixel_low = box.bottom;
  range.pixel_high = box.top;
  range.ticks = 4;
  const Axis y = train::make_axis(heights_of(points), range), x = step_axis(history, box, 4);
  svg.text(box.left, box.top - 14, title, "panel");
  draw_frame(svg, box, x, y);
  svg.begin_clip(box.left - 3, box.top - 3, box.right - box.left + 6, box.bottom - box.top + 6);
  const std::size_t window = train::smoothing_window(points.size());
  if (noise == Noise::smoothed && window > 1) {
    svg.curve(fitting(points, box), x, y, "small-raw");
    points = smoothed(points, window, y);
  }
  svg.curve(fitting(points, box), x, y, "small");
  svg.end_clip();
}

std::string subtitle_of(const MetricsHistory& history) {
  const RunSummary s = summarize(history);
  if (s.steps == 0) return "no steps recorded";
  const StepMetrics& last = history.steps.back();
  std::string text =
      train::with_thousands(last.step) + (last.step == 1 ? " step, " : " steps, ") +
      (last.tokens_total < 100000 ? train::with_thousands(last.tokens_total)
                                  : train::with_si_prefix(static_cast<double>(last.tokens_total))) +
      " tokens";
  if (history.run.parameters > 0)
    text += ", " + train::with_si_prefix(static_cast<double>(history.run.parameters)) + " parameters";
  if (!history.run.precision.empty()) text += ", " + history.run.precision;
  text += std::isfinite(s.last_loss) ? train::formatted(";  last training loss %.4f", s.last_loss)
                                     : std::string(";  last training loss not finite");
  if (s.last_evaluation) {
    text += train::formatted(", validation %.4f", s.last_evaluation->loss);
    if (history.run.bytes_per_token > 0.0)
      text += train::formatted(" = %.3f bits per byte",
                               bits_per_byte(s.last_evaluation->loss, history.run.bytes_per_token));
  }
  return text;
}

}  // namespace

std::string report_svg(const MetricsHistory& history) {
  const std::string name = history.run.name.empty() ? "Training run" : history.run.name;
  Svg svg(width, height, name + ": loss, learning rate, gradient norm, speed");
  svg.text(left, 40, name, "title");
  svg.text(left, 64, subtitle_of(history), "subtitle");
  draw_loss(svg, history);
  AxisRange from_zero{0, 1}, logarithmic{0, 1};
  from_zero.from_zero = true;
  logarithmic.may_be_logarithmic = true;
  draw_small(svg, history, 0, "learning rate", series(history, [](const StepMetrics& m) { return m.lr; }),
             from_zero, Noise::none);
  draw_small(svg, history, 1, "gradient norm",
             series(history, [](const StepMetrics& m) { return m.grad_norm; }), logarithmic, Noise::smoothed);
  draw_small(svg, history, 2, "tokens per second",
             series(history, [](const StepMetrics& m) { return m.tokens_per_second(); }), from_zero,
             Noise::smoothed);
  return svg.str();
}

void write_report(const MetricsHistory& history, const std::string& path) {
  const std::string text = report_svg(history);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    // A device or a pipe must not be renamed over.
    std::ofstream device(path, std::ios::binary);
    device << text;
    device.close();
    DELTAPORT_VALIDATE(device, DataError, path, ": cannot be written");
    return;
  }
  // Behind a link, the file that it leads to.
  const auto target = std::filesystem::weakly_canonical(path, ignored);
  OutputFile file(ignored ? path : target.string());
  file.write(std::as_bytes(std::span(text)));
  file.sync();
  file.publish();
  sync_folder(path);
}

}  // namespace deltaport
