// SPDX-License-Identifier: Apache-2.0
// Files that are no configuration: a plain message, never a crash or a hang.
#include "support.hpp"

namespace deltaport::test {
namespace {

std::string refuse_file(const std::string& file) {
  LoadRequest request;
  request.files = {file};
  request.environment = Variables{};
  request.data = DataSection::optional;
  try {
    load_config(request);
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << "accepted " << file;
  return "";
}

TEST(UnusableFiles, MissingAndDirectory) {
  TemporaryDirectory directory;
  EXPECT_TRUE(has(refuse_file(directory.path() + "/none.yaml"), "none.yaml: error: no such file"));
  EXPECT_TRUE(has(refuse_file(directory.path()), "error: is a directory"));
  EXPECT_TRUE(has(refuse_file(directory.write("f", "x") + "/below.yaml"), "error: no such file"));
  EXPECT_TRUE(has(refuse_file(""), "error: no such file"));
}

TEST(UnusableFiles, EmptyFilesNeedData) {
  for (const char* text : {"", "\n\n", "# only a comment\n", "---\n", "\xEF\xBB\xBF"}) {
    EXPECT_TRUE(has(report_of(text, {}, {}, DataSection::required), "'data.train' needs at least one entry"));
    EXPECT_EQ(load_text(text).config.train.steps, RunConfig{}.train.steps);
  }
  EXPECT_TRUE(has(report_of("data: {train: []}\n", {}, {}, DataSection::required),
                  "run.yaml:1:15: error: 'data.train' needs at least one entry"));
}

TEST(UnusableFiles, WhatBrokenFilesWouldSetIsNotMissed) {
  for (const char* text : {"a: [1, 2\n", "version: 1\n\trun: {}\n", "\xff\xfe"}) {
    const std::string report = report_of(text, {}, {}, DataSection::required);
    EXPECT_TRUE(has(report, "the configuration has 1 error")) << report;
    EXPECT_FALSE(has(report, "data.train")) << report;
  }
}

TEST(UnusableFiles, BinaryContent) {
  EXPECT_TRUE(
      has(report_of(std::string("version: 1\n\0\0", 13)), "run.yaml:2:1: error: control character (byte 0)"));
  EXPECT_TRUE(has(report_of("a\x04 b: 1\n"), "run.yaml:1:2: error: control character (byte 4)"));
  EXPECT_TRUE(has(report_of("run: {name: \xFF\xFE}\n"), "run.yaml:1:13: error: byte 255 is not UTF-8 text"));
  EXPECT_TRUE(has(report_of("run: {name: \xC3}\n"), "is not UTF-8 text"));
  EXPECT_TRUE(has(report_of("\x7F"
                            "ELF\x02\x01"),
                  "control character"));
}

TEST(UnusableFiles, DeepNesting) {
  for (const char* opening : {"[", "{a: ", "- ", "? ", "[{a: "}) {
    std::string text;
    for (int i = 0; i < 20000; ++i) text += opening;
    EXPECT_TRUE(has(report_of(text), "error: ")) << opening;
  }
  std::string block;
  for (int i = 0; i < 500; ++i) block += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_TRUE(has(report_of(block), "nested too deeply"));
}

TEST(UnusableFiles, HugeContent) {
  EXPECT_TRUE(has(report_of(std::string(3 << 20, 'a')), "error: is larger than 1 MiB"));
  EXPECT_TRUE(has(report_of(std::string(1 << 19, 'a') + "\n"), "must be a mapping"));
  std::string many = "version: 1\n";
  for (int i = 0; i < 5000; ++i) many += concat("k", i, ": 1\n");
  EXPECT_TRUE(has(report_of(many), "the configuration has at least 1000 errors"));
}

TEST(UnusableFiles, AliasesDoNotMultiply) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 25; ++i) {
    const std::string before = " *a" + std::to_string(i - 1);
    text += concat("a", i, ": &a", i, " [", before, ",", before, ",", before, ",", before, "]\n");
  }
  EXPECT_TRUE(has(report_of(text + "data: {train: *a24}\n"), "unknown key 'a0'"));
}

TEST(UnusableFiles, OddLineEndsAndMarks) {
  EXPECT_EQ(load_text("version: 1\r\ntrain:\r\n  steps: 50\r\n").config.train.steps, 50);
  EXPECT_EQ(load_text("\xEF\xBB\xBFversion: 1\ntrain: {steps: 50}").config.train.steps, 50);
  EXPECT_TRUE(has(report_of("version: 1\r\ntrain:\r\n  stpes: 50\r\n"), "run.yaml:3:3: error: unknown key"));
  EXPECT_EQ(load_text("version: 1\nrun: {name: \"Größe\"}\n").config.run.name, "Größe");
}

}  // namespace
}  // namespace deltaport::test
