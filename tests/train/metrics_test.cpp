// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/metrics.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "deltaport/core/error.hpp"
#include "deltaport/train/report.hpp"

namespace deltaport {
namespace {

class Metrics : public ::testing::Test {
 protected:
  Metrics() : path_(::testing::TempDir() + "metrics_" + std::to_string(getpid()) + ".jsonl") {
    std::filesystem::remove(path_);
  }
  ~Metrics() override { std::filesystem::remove(path_); }

  std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void append(const std::string& tail) const {
    std::ofstream(path_, std::ios::app | std::ios::binary) << tail;
  }
  /// Steps `from`..`to`, and an evaluation after each fifth.
  static void write_steps(MetricsWriter& writer, std::int64_t from, std::int64_t to, double offset = 0.0) {
    for (std::int64_t step = from; step <= to; ++step) {
      StepMetrics m;
      m.step = step;
      m.loss = 3.0 / static_cast<double>(step) + offset;
      m.tokens = 1000;
      m.seconds = 0.5;
      writer.write(m);
      if (step % 5 == 0) writer.write(EvalMetrics{step, 2.0, 100, 0.1});
    }
  }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> all;
    for (const StepMetrics& m : read_metrics(path_).steps) all.push_back(m.step);
    return all;
  }
  static std::vector<std::int64_t> range(std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = from; i <= to; ++i) all.push_back(i);
    return all;
  }

  std::string path_;
  RunMetrics run_{"a \"run\"", "0.1.0", 1234, 2, 100, 1.0};
};

TEST_F(Metrics, ReadsBackToTheLastBit) {
  StepMetrics written{1, 0.1 + 0.2, 1.0 / 3.0, 2.97e-4, 4096, 4095, 4096, 0.4126, 123456789, 987654321};
  {
    MetricsWriter writer(path_, run_);
    writer.write(EvalMetrics{0, 5.5, 77, 0.25});
    writer.write(written);
  }
  const MetricsHistory history = read_metrics(path_);
  EXPECT_EQ(history.run.name, "a \"run\"");
  EXPECT_EQ(history.run.ranks, 2);
  EXPECT_EQ(history.run.bytes_per_token, 1.0);
  ASSERT_EQ(history.steps.size(), 1u);
  const StepMetrics& read = history.steps[0];
  EXPECT_EQ(read.loss, written.loss);
  EXPECT_EQ(read.grad_norm, written.grad_norm);
  EXPECT_EQ(read.lr, written.lr);
  EXPECT_EQ(read.seconds, written.seconds);
  EXPECT_EQ(read.valid_tokens, written.valid_tokens);
  EXPECT_EQ(read.memory_reserved_bytes, written.memory_reserved_bytes);
  ASSERT_EQ(history.evaluations.size(), 1u);
  EXPECT_EQ(history.evaluations[0].loss, 5.5);
}

TEST_F(Metrics, SaysThePrecisionWhereItIsKnown) {
  RunMetrics run = run_;
  run.precision = "bfloat16";
  { const MetricsWriter writer(path_, run); }
  EXPECT_EQ(read_metrics(path_).run.precision, "bfloat16");
  EXPECT_NE(text().find("\"bytes_per_token\":1,\"precision\":\"bfloat16\"}"), std::string::npos) << text();
  EXPECT_NE(report_text(read_metrics(path_)).find("bfloat16"), std::string::npos);
  { const MetricsWriter writer(path_, run_); }  // as earlier releases wrote it
  EXPECT_EQ(read_metrics(path_).run.precision, "");
}

TEST_F(Metrics, LinesAreStable) {
  {
    MetricsWriter writer(path_, run_);
    writer.write(StepMetrics{1, 2.5, 0.75, 0.0003, 100, 99, 100, 0.5, 1, 2});
  }
  EXPECT_EQ(
      text(),
      "{\"kind\":\"run\",\"name\":\"a \\\"run\\\"\",\"version\":\"0.1.0\",\"parameters\":1234,\"ranks\":2,"
      "\"steps\":100,\"bytes_per_token\":1}\n"
      "{\"kind\":\"step\",\"step\":1,\"loss\":2.5,\"loss_hex\":\"0x1.4p+1\",\"grad_norm\":0.75,\"lr\":3e-04,"
      "\"tokens\":100,\"valid_tokens\":99,\"tokens_total\":100,\"seconds\":0.5,\"tokens_per_second\":200,"
      "\"memory_allocated_bytes\":1,\"memory_reserved_bytes\":2}\n");
}

TEST_F(Metrics, OffloadIsARecordOfItsStep) {
  OffloadMetrics written;
  written.step = 1;
  written.to_host_bytes = 123456789012;
  written.useless_bytes = 7;
  written.to_host_seconds = 0.1 + 0.2;
  written.to_device_seconds = 0.1;
  written.stall_seconds = 0.1;
  written.to_host_stall_seconds = 0.04;
  written.peak_blocks = "2 x \"mlp\" 5.0 MiB";
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 1);
    writer.write(written);
    write_steps(writer, 2, 2);
    EXPECT_THROW(writer.write(written), Error);
  }
  const MetricsHistory history = read_metrics(path_);
  ASSERT_EQ(history.offload.size(), 1U);
  const OffloadMetrics& read = history.offload[0];
  EXPECT_EQ(read.to_host_bytes, written.to_host_bytes);
  EXPECT_EQ(read.useless_bytes, 7);
  EXPECT_EQ(read.to_host_seconds, written.to_host_seconds);
  EXPECT_EQ(read.to_host_stall_seconds, written.to_host_stall_seconds);
  EXPECT_EQ(read.peak_blocks, written.peak_blocks);
  EXPECT_DOUBLE_EQ(read.overlap(), 0.75);
  EXPECT_EQ(history.steps.size(), 2U);
  // Cut with its step on resume.
  { MetricsWriter writer(path_, run_, 0); }
  EXPECT_TRUE(read_metrics(path_).offload.empty());
}

TEST_F(Metrics, EachLineIsOnDiskAtOnce) {
  MetricsWriter writer(path_, run_);
  write_steps(writer, 1, 3);
  EXPECT_EQ(steps(), range(1, 3));
}

TEST_F(Metrics, NotFiniteIsNull) {
  {
    MetricsWriter writer(path_, run_);
    StepMetrics m;
    m.step = 1;
    m.loss = std::numeric_limits<double>::quiet_NaN();
    m.grad_norm = std::numeric_limits<double>::infinity();
    writer.write(m);
  }
  EXPECT_NE(text().find("\"loss\":null,\"loss_hex\":\"nan\",\"grad_norm\":null"), std::string::npos)
      << text();
  EXPECT_TRUE(std::isnan(read_metrics(path_).steps[0].loss));
}

TEST_F(Metrics, ResumeCutsToTheStepAndStaysUnique) {
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 12);
  }
  {
    MetricsWriter writer(path_, run_, 7);
    EXPECT_EQ(steps(), range(1, 7));
    EXPECT_EQ(read_metrics(path_).evaluations.size(), 1u);
    write_steps(writer, 8, 15, 0.5);
  }
  const MetricsHistory history = read_metrics(path_);
  EXPECT_EQ(steps(), range(1, 15));
  EXPECT_EQ(history.run.name, run_.name);
  EXPECT_EQ(history.steps[8].loss, 3.0 / 9.0 + 0.5);
  ASSERT_EQ(history.evaluations.size(), 3u);
  EXPECT_EQ(history.evaluations[1].step, 10);
}

TEST_F(Metrics, ResumeKeepsTheEvaluationOfItsStep) {
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 7);
  }
  MetricsWriter writer(path_, run_, 5);
  writer.write(EvalMetrics{5, 9.0, 1, 0.0});  // already there
  write_steps(writer, 6, 6);
  const auto evaluations = read_metrics(path_).evaluations;
  ASSERT_EQ(evaluations.size(), 1u);
  EXPECT_EQ(evaluations[0].loss, 2.0);
}

TEST_F(Metrics, ResumeToleratesATornLastLine) {
  for (const std::string torn : {"{\"kind\":\"step\",\"st", "{\"kind\":\"step\",\"st\n", "garbage\n"}) {
    {
      MetricsWriter writer(path_, run_);
      write_steps(writer, 1, 4);
    }
    append(torn);
    EXPECT_EQ(steps(), range(1, 4));
    {
      MetricsWriter writer(path_, run_, 4);
      write_steps(writer, 5, 6);
    }
    EXPECT_EQ(steps(), range(1, 6)) << torn;
  }
}

TEST_F(Metrics, ResumeAtTheBeginningOrWithoutAFileStartsWithTheRun) {
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 4);
  }
  {
    MetricsWriter writer(path_, run_, 0);
    write_steps(writer, 1, 2);
  }
  EXPECT_EQ(steps(), range(1, 2));
  std::filesystem::remove(path_);
  {
    MetricsWriter writer(path_, run_, 30);
    write_steps(writer, 31, 32);
  }
  EXPECT_EQ(steps(), range(31, 32));
  EXPECT_EQ(read_metrics(path_).run.name, run_.name);
}

TEST_F(Metrics, FreshStartForgetsTheOldFile) {
  for (int i = 0; i < 2; ++i) {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 3);
  }
  EXPECT_EQ(steps(), range(1, 3));
}

TEST_F(Metrics, CheckpointsAreRecords) {
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 5);
    writer.write(CheckpointMetrics{5});
    write_steps(writer, 6, 8);
    writer.write(CheckpointMetrics{8});
    EXPECT_THROW(writer.write(CheckpointMetrics{7}), Error);
  }
  EXPECT_EQ(read_metrics(path_).checkpoints.size(), 2u);
  MetricsWriter writer(path_, run_, 5);  // keeps what belongs to the resumed step
  ASSERT_EQ(read_metrics(path_).checkpoints.size(), 1u);
  EXPECT_EQ(read_metrics(path_).checkpoints[0].step, 5);
}

TEST_F(Metrics, CapturedGraphsAreRecords) {
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 2);
    writer.write(GraphMetrics{2, 17, 420, 5839360, 0.25});
    write_steps(writer, 3, 5);
    EXPECT_THROW(writer.write(GraphMetrics{4, 1, 1, 1, 1.0}), Error);
    writer.write(GraphMetrics{5, 34, 840, 5839360, 0.5});
  }
  std::ifstream file(path_);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("\n{\"kind\":\"graphs\",\"step\":2,\"graphs\":17,\"operations\":420,\"bytes\":5839360,"
                      "\"capture_seconds\":0.25}\n"),
            std::string::npos)
      << text;
  const MetricsHistory history = read_metrics(path_);
  EXPECT_EQ(history.steps.size(), 5u);
  ASSERT_EQ(history.graphs.size(), 2u);
  EXPECT_EQ(history.graphs[1].step, 5);
  EXPECT_EQ(history.graphs[1].operations, 840);
  EXPECT_EQ(history.graphs[1].capture_seconds, 0.5);
  const MetricsWriter resumed(path_, run_, 4);  // keeps what belongs to the resumed step
  EXPECT_EQ(read_metrics(path_).graphs.size(), 1u);
}

/// No file of this process may grow beyond `bytes`, as on a disk that is nearly full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uintmax_t bytes) : earlier_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit lower{static_cast<rlim_t>(bytes), limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, earlier_);
  }

 private:
  void (*earlier_)(int);
  rlimit limit_{};
};

TEST_F(Metrics, AFullDiskLeavesRecordsOutAsAWhole) {
  MetricsWriter writer(path_, run_);
  write_steps(writer, 1, 3);
  const std::string before = text();
  {
    const FileSizeLimit full(before.size() + 20);  // room for a torn line
    StepMetrics m;
    for (m.step = 4; m.step <= 5; ++m.step) EXPECT_THROW(writer.write(m), DataError);
    EXPECT_EQ(text(), before);
  }
  write_steps(writer, 6, 7);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3, 6, 7}));
}

TEST_F(Metrics, TheFirstRecordMayComeLate) {
  std::optional<MetricsWriter> writer;
  {
    const FileSizeLimit full(20);
    writer.emplace(path_, run_);
    EXPECT_THROW(write_steps(*writer, 1, 1), DataError);
    EXPECT_EQ(text(), "");
  }
  write_steps(*writer, 2, 3);
  EXPECT_EQ(steps(), range(2, 3));
  EXPECT_EQ(read_metrics(path_).run.name, run_.name);
}

TEST_F(Metrics, RefusesStepsThatDoNotAscend) {
  MetricsWriter writer(path_, run_);
  write_steps(writer, 1, 3);
  StepMetrics again;
  again.step = 3;
  EXPECT_THROW(writer.write(again), Error);
  EXPECT_THROW(writer.write(EvalMetrics{2, 1.0, 1, 0.0}), Error);
}

TEST_F(Metrics, DamageBeforeTheLastLineIsNamed) {
  {
    MetricsWriter writer(path_, run_);
    write_steps(writer, 1, 2);
  }
  append("oops\n{\"kind\":\"eval\",\"step\":2,\"loss\":1,\"valid_tokens\":1,\"seconds\":0}\n");
  try {
    read_metrics(path_);
    FAIL() << "no exception";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find(path_ + ":4: "), std::string::npos) << e.what();
  }
}

TEST_F(Metrics, MissingFileOrFolderIsNamed) {
  EXPECT_THROW(read_metrics(path_), DataError);
  EXPECT_THROW(MetricsWriter("/nowhere/metrics.jsonl", run_), DataError);
}

TEST(BitsPerByte, FromNatsPerToken) {
  EXPECT_DOUBLE_EQ(bits_per_byte(std::log(2.0), 1.0), 1.0);
  EXPECT_DOUBLE_EQ(bits_per_byte(std::log(256.0), 4.0), 2.0);
  EXPECT_TRUE(std::isnan(bits_per_byte(1.0, 0.0)));
}

}  // namespace
}  // namespace deltaport
