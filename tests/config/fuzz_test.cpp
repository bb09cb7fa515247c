// SPDX-License-Identifier: Apache-2.0
// Random damage to a valid file: it loads or is refused with a report; nothing else may happen.
#include <random>

#include "support.hpp"

namespace deltaport::test {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string damage(std::string text, std::mt19937& random) {
  static const std::string bytes = "{}[]:,#&*!|>'\"%@`-?\n\t ~<$0\x01\xC3\xFFyZ.";
  const auto below = [&](std::size_t limit) { return random() % limit; };
  for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
    const std::size_t at = below(text.size());
    const char byte = bytes[below(bytes.size())];
    switch (below(5)) {
      case 0:
        text[at] = byte;
        break;
      case 1:
        text.insert(at, 1 + below(3), byte);
        break;
      case 2:
        text.erase(at, 1 + below(20));
        break;
      case 3:
        text.insert(below(text.size()), text.substr(at, below(60)));
        break;
      default:
        text.resize(at + 1);
    }
    if (text.empty()) text.push_back(byte);
  }
  return text;
}

void survive(const std::string& text) {
  LoadRequest request;
  try {
    parse_canonical(text, "run.yaml");
  } catch (const ConfigError& e) {
    EXPECT_TRUE(has(e.what(), "error")) << text;
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what() << " for:\n" << text;
  }
}

TEST(Fuzz, DamagedFilesAreLoadedOrRefused) {
  std::mt19937 random(20240229);
  for (const char* name : {"/quickstart.yaml", "/qwen3.5-0.8b.yaml", "/cpu-tiny.yaml"}) {
    const std::string text = read_all(DELTAPORT_YAML_DIR + std::string(name));
    ASSERT_FALSE(text.empty());
    for (int i = 0; i < 300; ++i) survive(damage(text, random));
  }
}

TEST(Fuzz, EveryTruncationIsSurvived) {
  const std::string text = read_all(DELTAPORT_YAML_DIR "/quickstart.yaml");
  for (std::size_t size = 0; size < text.size(); size += 3) survive(text.substr(0, size));
}

TEST(Fuzz, RandomOverridesAreSurvived) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const std::string argument = damage("--model.layer_pattern=[gdn, gdn2]", random);
    const std::string value = damage("${env:A:-${run.dir}}", random);
    try {
      load_arguments({argument, "--run.name=" + value});
    } catch (const ConfigError& e) {
      EXPECT_TRUE(has(e.what(), "error"));
    }
  }
}

}  // namespace
}  // namespace deltaport::test
