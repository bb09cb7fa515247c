// SPDX-License-Identifier: Apache-2.0
// What lies in yaml/ is valid, short, points editors to the schema, and the schema is the program's own.
#include <algorithm>

#include "deltaport/config/schema.hpp"
#include "support.hpp"

namespace deltaport::test {
namespace {

std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ShippedFiles, SchemaIsUpToDate) {
  EXPECT_TRUE(read_all(DELTAPORT_YAML_DIR "/config.schema.json") == json_schema())
      << "write it again: deltaport schema > yaml/config.schema.json";
}

TEST(ShippedFiles, EveryRunIsValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DELTAPORT_YAML_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    const std::string text = read_all(entry.path());
    EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60) << entry.path();
    EXPECT_TRUE(text.starts_with("# yaml-language-server: $schema=./config.schema.json\n")) << entry.path();
    LoadRequest request;
    request.files = {entry.path().string()};
    request.environment = Variables{};
    try {
      EXPECT_TRUE(load_config(request).warnings.empty()) << entry.path();
    } catch (const ConfigError& e) {
      ADD_FAILURE() << e.what();
    }
  }
  EXPECT_GE(count, 3);
}

TEST(ShippedFiles, NumbersAreReadByOtherYamlReaders) {
  // YAML 1.1 readers take "3e-4" for text: ours are written with a point.
  for (const auto& entry : std::filesystem::directory_iterator(DELTAPORT_YAML_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    std::istringstream lines(read_all(entry.path()));
    for (std::string line; std::getline(lines, line);) {
      const std::size_t e = line.find("e-");
      if (e == std::string::npos || e == 0 || std::isdigit(static_cast<unsigned char>(line[e - 1])) == 0)
        continue;
      EXPECT_EQ(line[e - 2], '.') << line;
    }
  }
}

}  // namespace
}  // namespace deltaport::test
