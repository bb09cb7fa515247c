// SPDX-License-Identifier: Apache-2.0
#include "train/svg.hpp"

#include <cmath>

#include "deltaport/core/error.hpp"
#include "train/number_format.hpp"

namespace deltaport::train {
namespace {

constexpr std::string_view style = R"css(
text { font-family: Inter, "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif; font-size: 12px; fill: #4b5563; }
.title { font-size: 20px; font-weight: 600; fill: #111827; }
.subtitle { font-size: 13px; fill: #4b5563; }
.panel { font-size: 13px; font-weight: 600; fill: #1f2937; }
.tick { font-size: 11px; fill: #6b7280; }
.value { font-size: 12px; fill: #1f2937; }
.grid { stroke: #e5e7eb; stroke-width: 1; }
.frame { stroke: #9ca3af; stroke-width: 1; }
path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.raw { stroke: #2563eb; stroke-opacity: 0.38; stroke-width: 1; }
.smooth { stroke: #1d4ed8; stroke-width: 2; }
.valid { stroke: #d9480f; stroke-width: 1.75; }
.small { stroke: #374151; stroke-width: 1.5; }
.small-raw { stroke: #374151; stroke-opacity: 0.35; stroke-width: 1; }
.valid-dot { fill: #ffffff; stroke: #d9480f; stroke-width: 2; }
.bad { stroke: #b91c1c; stroke-width: 1.5; }
.dot { stroke-width: 5; }
)css";

std::string number(double value) {
  std::string text = formatted("%.2f", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

const char* name_of(Anchor anchor) {
  return anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20 || c == '\t')
      out += c;
  }
  return out;
}

Svg::Svg(int width, int height, std::string_view description) {
  body_ = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
                 "\" viewBox=\"0 0 ", width, ' ', height, "\" role=\"img\">\n<title>", escaped(description),
                 "</title>\n<style>", style, "</style>\n<rect width=\"", width, "\" height=\"", height,
                 "\" fill=\"#ffffff\"/>\n");
}

void Svg::text(double x, double y, std::string_view content, std::string_view css_class, Anchor anchor) {
  body_ += concat("<text x=\"", number(x), "\" y=\"", number(y), "\" class=\"", css_class,
                  "\" text-anchor=\"", name_of(anchor), "\">", escaped(content), "</text>\n");
}

void Svg::vertical_text(double x, double y, std::string_view content, std::string_view css_class) {
  body_ += concat("<text transform=\"translate(", number(x), ' ', number(y), ") rotate(-90)\" class=\"",
                  css_class, "\" text-anchor=\"middle\">", escaped(content), "</text>\n");
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ += concat("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2), "\" y2=\"",
                  number(y2), "\" class=\"", css_class, "\"/>\n");
}

void Svg::circle(double x, double y, double radius, std::string_view css_class) {
  body_ += concat("<circle cx=\"", number(x), "\" cy=\"", number(y), "\" r=\"", number(radius), "\" class=\"",
                  css_class, "\"/>\n");
}

void Svg::curve(const std::vector<Point>& points, const Axis& x, const Axis& y, std::string_view css_class) {
  const auto drawable = [&y](const Point& p) {
    return std::isfinite(p.y) && (y.scale == Scale::linear || p.y > 0.0);
  };
  std::string path, dots;
  for (std::size_t i = 0; i < points.size();) {
    if (!drawable(points[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    std::string piece;
    for (; end < points.size() && drawable(points[end]); ++end)
      piece += (end == i ? 'M' : 'L') + number(x.pixel(points[end].x)) + ' ' + number(y.pixel(points[end].y));
    if (end == i + 1)
      dots += piece + "h0";  // a stroke without length and round ends
    else
      path += piece;
    i = end;
  }
  if (!path.empty()) body_ += concat("<path class=\"", css_class, "\" d=\"", path, "\"/>\n");
  if (!dots.empty()) body_ += concat("<path class=\"", css_class, " dot\" d=\"", dots, "\"/>\n");
}

void Svg::begin_clip(double x, double y, double width, double height) {
  ++clips_;
  body_ += concat("<clipPath id=\"clip", clips_, "\"><rect x=\"", number(x), "\" y=\"", number(y),
                  "\" width=\"", number(width), "\" height=\"", number(height),
                  "\"/></clipPath>\n<g clip-path=\"url(#clip", clips_, ")\">\n");
}
void Svg::end_clip() {
  body_ += "</g>\n";
}

std::string Svg::str() const {
  return body_ + "</svg>\n";
}

}  // namespace deltaport::train
