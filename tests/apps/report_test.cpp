// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "apps/call.hpp"
#include "config/support.hpp"
#include "deltaport/train/metrics.hpp"

namespace deltaport::test {
namespace {

class ReportCommand : public ::testing::Test {
 protected:
  ReportCommand() {
    MetricsWriter writer(folder_.path() + "/metrics.jsonl", {"run", "0.1.0", 10, 1, 2, 1.0});
    writer.write(StepMetrics{1, 2.5, 0.75, 0.0003, 100, 99, 100, 0.5, 1, 2});
    writer.write(StepMetrics{2, 2.0, 0.75, 0.0003, 100, 99, 200, 0.5, 1, 2});
  }
  std::string content(const std::string& path) const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  TemporaryDirectory folder_;
  std::string to_ = folder_.path() + "/curve.svg";
};

TEST_F(ReportCommand, WritesAWholeFileAndNothingBesides) {
  folder_.write("curve.svg", "the picture of yesterday");
  std::filesystem::create_hard_link(to_, folder_.path() + "/kept");
  const Outcome outcome = call("report " + folder_.path() + " --out " + to_);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_TRUE(has(content(to_), "</svg>\n"));
  EXPECT_EQ(names(), (std::vector<std::string>{"curve.svg", "kept", "metrics.jsonl"}));
  // Replaced by a rename: whoever has the old file open still sees all of it.
  EXPECT_EQ(content(folder_.path() + "/kept"), "the picture of yesterday");
}

TEST_F(ReportCommand, AFailureLeavesTheEarlierPicture) {
  folder_.write("curve.svg", "the picture of yesterday");
  // No file may grow, as on a full disk.
  const Outcome outcome =
      shell("trap '' XFSZ; ulimit -f 0; " DELTAPORT_EXECUTABLE " report " + folder_.path() + " --out " + to_);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.text;
  EXPECT_TRUE(has(outcome.text, to_));
  EXPECT_EQ(content(to_), "the picture of yesterday");
  EXPECT_EQ(names(), (std::vector<std::string>{"curve.svg", "metrics.jsonl"}));
}

TEST_F(ReportCommand, FollowsLinksAndWritesToDevices) {
  folder_.write("curve.svg", "");
  std::filesystem::create_symlink("curve.svg", folder_.path() + "/link");
  EXPECT_EQ(call("report " + folder_.path() + " --out " + folder_.path() + "/link").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path() + "/link"));
  EXPECT_TRUE(has(content(to_), "</svg>\n"));
  EXPECT_EQ(call("report " + folder_.path() + " --out /dev/null").exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace deltaport::test
