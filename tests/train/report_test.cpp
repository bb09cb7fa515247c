// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace deltaport {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

MetricsHistory history_of(const std::vector<double>& losses, double bytes_per_token = 1.0) {
  MetricsHistory history;
  history.run = {"a <run> & \"co\"", "0.1.0", 1000, 1, static_cast<std::int64_t>(losses.size()),
                 bytes_per_token};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto step = static_cast<std::int64_t>(i) + 1;
    history.steps.push_back({step, losses[i], 1.0, 1e-3, 100, 100, 100 * step, 0.5, 1 << 20, 1 << 21});
  }
  return history;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

/// Elements are closed, text is escaped, numbers are numbers.
void expect_well_formed(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "<g "), count(svg, "</g>"));
  EXPECT_EQ(count(svg, "<script"), 0u);
  EXPECT_EQ(count(svg, "=\"nan"), 0u);
  EXPECT_EQ(count(svg, "inf"), count(svg, "infinite"));
  EXPECT_EQ(count(svg, "<run>"), 0u);
  EXPECT_EQ(count(svg, "Mnan") + count(svg, "Lnan") + count(svg, " nan"), 0u);
  EXPECT_LT(svg.size(), 400000u);
}

TEST(Report, DrawsAnyHistory) {
  std::vector<double> many(50000), exploding(100), with_gaps(300);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = 5.0 / (1.0 + 0.001 * static_cast<double>(i));
  for (std::size_t i = 0; i < exploding.size(); ++i)
    exploding[i] = std::pow(10.0, static_cast<double>(i) / 3.0);
  for (std::size_t i = 0; i < with_gaps.size(); ++i) with_gaps[i] = i % 7 == 0 ? nan : 2.0;
  for (const auto& losses :
       std::vector<std::vector<double>>{{},
                                        {5.5},
                                        {nan},
                                        {0.0, 0.0},
                                        {-1.0, 1e300, std::numeric_limits<double>::infinity()},
                                        many,
                                        exploding,
                                        with_gaps})
    for (const double bytes : {0.0, 1.0}) expect_well_formed(report_svg(history_of(losses, bytes)));
  expect_well_formed(report_svg(MetricsHistory{}));
}

TEST(Report, BitsPerByteOnlyWhereBytesAreKnown) {
  EXPECT_NE(report_svg(history_of({5.0, 4.0}, 1.0)).find("bits per byte"), std::string::npos);
  EXPECT_EQ(report_svg(history_of({5.0, 4.0}, 0.0)).find("bits per byte"), std::string::npos);
}

TEST(Report, MarksStepsThatAreNotFinite) {
  const std::string svg = report_svg(history_of({5.0, nan, 4.0, nan}));
  EXPECT_NE(svg.find("not finite: 2 steps"), std::string::npos);
  EXPECT_EQ(report_svg(history_of({5.0, 4.0})).find("not finite"), std::string::npos);
}

TEST(Summary, KnowsTheRun) {
  MetricsHistory history = history_of({5.0, nan, 3.0, 3.5});
  history.steps[0].seconds = 10.0;  // warm-up
  history.evaluations = {{0, 5.5, 100, 0.1}, {4, 3.25, 100, 0.1}};
  const RunSummary s = summarize(history);
  EXPECT_EQ(s.steps, 4);
  EXPECT_EQ(s.non_finite, 1);
  EXPECT_EQ(s.first_loss, 5.0);
  EXPECT_EQ(s.last_loss, 3.5);
  EXPECT_EQ(s.lowest_loss, 3.0);
  EXPECT_EQ(s.lowest_step, 3);
  EXPECT_EQ(s.first_evaluation->loss, 5.5);
  EXPECT_EQ(s.last_evaluation->loss, 3.25);
  EXPECT_DOUBLE_EQ(s.tokens_per_second, 200.0);
  const std::string text = report_text(history);
  EXPECT_NE(text.find("3.5000  (5.0494 bits per byte)"), std::string::npos) << text;
  EXPECT_NE(text.find("200 tokens/s"), std::string::npos) << text;
  EXPECT_NE(text.find("not finite"), std::string::npos) << text;
}

TEST(Summary, OfNothing) {
  const RunSummary s = summarize({});
  EXPECT_EQ(s.steps, 0);
  EXPECT_TRUE(std::isnan(s.last_loss));
  EXPECT_FALSE(report_text({}).empty());
}

}  // namespace
}  // namespace deltaport
