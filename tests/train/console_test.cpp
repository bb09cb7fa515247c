// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/console.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "deltaport/core/error.hpp"
#include "train/number_format.hpp"

namespace deltaport {
namespace {

StepMetrics metrics(std::int64_t step) {
  StepMetrics m;
  m.step = step;
  m.loss = 3.01032;
  m.grad_norm = 0.7197;
  m.lr = 2.97e-4;
  m.tokens = 5094;
  m.seconds = 0.41263;
  m.memory_allocated_bytes = (std::int64_t{52} << 30) / 100;
  m.memory_reserved_bytes = (std::int64_t{60} << 30) / 100;
  return m;
}

/// A stream that goes to memory.
class Capture {
 public:
  Capture() : stream_(open_memstream(&data_, &size_)) {}
  ~Capture() {
    std::fclose(stream_);
    std::free(data_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::FILE* stream() { return stream_; }
  std::string text() {
    std::fflush(stream_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* stream_;
};

class ConsoleTest : public ::testing::Test {
 protected:
  void SetUp() override { forget(); }
  void TearDown() override { forget(); }
  static void forget() {
    unsetenv("NO_COLOR");
    unsetenv("DELTAPORT_PROGRESS");
  }
  ConsoleOptions options(std::int64_t total = 1000) {
    ConsoleOptions o;
    o.out = out_.stream();
    o.progress = err_.stream();
    o.total_steps = total;
    return o;
  }
  Capture out_, err_;
};

TEST(StepLine, FixedColumns) {
  EXPECT_EQ(step_line(metrics(120), 1000, 0.0, 363.0),
            "step    120/1000  loss  3.0103  gnorm    0.720  lr 2.97e-04    412.6 ms       12,345 tok/s  mem "
            "0.52/0.60 "
            "GiB  eta 6m03s");
  EXPECT_EQ(step_line(metrics(120), 1000, 1.0, 363.0).substr(17, 25), " loss  3.0103  bpb  4.343");
  StepMetrics large = metrics(999);
  large.loss = 11.5;
  large.grad_norm = 123456.0;
  large.seconds = 12.0;
  EXPECT_EQ(step_line(large, 1000, 0.0, 0.0).find("tok/s"),
            step_line(metrics(1), 1000, 0.0, 0.0).find("tok/s"));
}

TEST(StepLine, NotFiniteStaysReadable) {
  StepMetrics m = metrics(3);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  const std::string line = step_line(m, 10, 1.0, -1.0);
  EXPECT_NE(line.find("loss     nan"), std::string::npos) << line;
  EXPECT_NE(line.find("eta --"), std::string::npos) << line;
  m.loss = -m.loss;  // what x86 makes of 0 * inf
  EXPECT_EQ(step_line(m, 10, 1.0, -1.0), line);
}

TEST(ProgressBar, FitsTheTerminal) {
  for (int columns = 0; columns <= 200; ++columns)
    EXPECT_LE(progress_bar(metrics(120), 1000, 363.0, columns).size(), static_cast<std::size_t>(columns));
  EXPECT_EQ(progress_bar(metrics(500), 1000, 38.0, 64),
            "[=========>         ]  50%  step  500/1000  loss 3.0103  eta 38s");
  EXPECT_NE(progress_bar(metrics(1000), 1000, 0.0, 80).find("=]"), std::string::npos);
}

TEST_F(ConsoleTest, LogsHoldPlainLinesOnly) {
  {
    Console console(options());
    console.banner("deltaport 0.1.0", {{"ranks", "2"}, {"parameters", "1,234"}});
    console.step(metrics(1));
    console.evaluation(EvalMetrics{1, 2.5, 100, 0.1});
    console.note("checkpoint written");
    console.warning("slow disk");
  }
  EXPECT_EQ(err_.text(), "");
  EXPECT_EQ(out_.text().find('\033'), std::string::npos);
  EXPECT_EQ(out_.text().find('\r'), std::string::npos);
  EXPECT_EQ(out_.text().substr(0, 63), "deltaport 0.1.0\n  ranks       2\n  parameters  1,234\nstep      1");
}

TEST_F(ConsoleTest, PrintsEveryNthTheLastAndTheBad) {
  ConsoleOptions o = options(25);
  o.every = 10;
  {
    Console console(o);
    for (std::int64_t step = 1; step <= 25; ++step) {
      StepMetrics m = metrics(step);
      if (step == 13) m.loss = std::numeric_limits<double>::infinity();
      console.step(m);
    }
  }
  std::vector<std::string> numbers;
  std::string text = out_.text();
  for (std::size_t at = 0; (at = text.find("step ", at)) != std::string::npos; ++at)
    numbers.push_back(text.substr(at + 5, 9));
  EXPECT_EQ(numbers, (std::vector<std::string>{"    10/25", "    13/25", "    20/25", "    25/25"}));
}

TEST_F(ConsoleTest, BarIsClearedBeforeEachLineAndAtTheEnd) {
  ConsoleOptions o = options();
  o.bar = Show::on;
  o.progress = o.out;  // one terminal: order shows
  {
    Console console(o);
    console.step(metrics(1));
    console.step(metrics(2));
  }
  const std::string text = out_.text();
  for (std::size_t at = 0; (at = text.find("step      ", at)) != std::string::npos; ++at)
    EXPECT_TRUE(at == 0 || text.substr(at - 4, 4) == "\r\033[K") << at;
  EXPECT_EQ(text.substr(text.size() - 4), "\r\033[K");
}

TEST_F(ConsoleTest, ColourHonoursNoColor) {
  ConsoleOptions o = options();
  o.colour = Show::on;
  { Console(o).warning("x"); }
  EXPECT_NE(out_.text().find('\033'), std::string::npos);
  const std::size_t before = out_.text().size();
  setenv("NO_COLOR", "1", 1);
  { Console(o).warning("x"); }
  EXPECT_EQ(out_.text().substr(before), "warning: x\n");
}

TEST_F(ConsoleTest, EnvironmentSwitchesTheBar) {
  setenv("DELTAPORT_PROGRESS", "1", 1);
  { Console(options()).step(metrics(1)); }
  EXPECT_NE(out_.text().find("[>"), std::string::npos);  // with the lines, in order
  EXPECT_EQ(err_.text(), "");
  setenv("DELTAPORT_PROGRESS", "0", 1);
  ConsoleOptions o = options();
  o.bar = Show::on;
  { Console(o).step(metrics(1)); }
  EXPECT_EQ(err_.text(), "");
}

TEST_F(ConsoleTest, RejectsNonsense) {
  ConsoleOptions o = options();
  o.every = 0;
  EXPECT_THROW(Console{o}, Error);
}

TEST(NumberFormat, Texts) {
  using namespace train;
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1234567), "1,234,567");
  EXPECT_EQ(with_thousands(-1234), "-1,234");
  EXPECT_EQ(duration(0), "0s");
  EXPECT_EQ(duration(59.6), "1m00s");
  EXPECT_EQ(duration(7500), "2h05m");
  EXPECT_EQ(duration(100 * 3600.0), "4d04h");
  EXPECT_EQ(duration(-1), "--");
  EXPECT_EQ(duration(std::nan("")), "--");
  EXPECT_EQ(with_si_prefix(999), "999");
  EXPECT_EQ(with_si_prefix(1234567), "1.23 M");
  EXPECT_EQ(with_si_prefix(999999), "1 M");
}

}  // namespace
}  // namespace deltaport
