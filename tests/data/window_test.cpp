// SPDX-License-Identifier: Apache-2.0
// Boundaries and labels of windows against a token-by-token restatement of the rule.
#include "data/window.hpp"

#include <gtest/gtest.h>

#include "data/scratch.hpp"
#include "deltaport/data/sample_source.hpp"

namespace deltaport::test {
namespace {

struct Expected {
  std::vector<std::int32_t> tokens, labels, cu_seqlens;
  std::int64_t valid = 0;
};

/// The rule said plainly: owner[t] is the document of stream position t.
Expected expect_window(const std::vector<std::vector<std::int32_t>>& documents, std::int64_t index,
                       std::int64_t length) {
  std::vector<std::int32_t> stream;
  std::vector<std::size_t> owner;
  for (std::size_t d = 0; d < documents.size(); ++d)
    for (const std::int32_t id : documents[d]) {
      stream.push_back(id);
      owner.push_back(d);
    }
  Expected e;
  e.cu_seqlens.push_back(0);
  for (std::int64_t i = 0; i < length; ++i) {
    const auto t = static_cast<std::size_t>(index * length + i);
    const bool same = owner[t] == owner[t + 1];
    e.tokens.push_back(stream[t]);
    e.labels.push_back(same ? stream[t + 1] : ignored_label);
    e.valid += same ? 1 : 0;
    if (!same || i + 1 == length) e.cu_seqlens.push_back(static_cast<std::int32_t>(i + 1));
  }
  return e;
}

void check_all_windows(const std::vector<std::int64_t>& lengths, std::int64_t window) {
  const Scratch scratch;
  const auto documents = numbered_documents(lengths);
  const TokenFile file(write_documents(scratch.path("w"), documents));
  ASSERT_EQ(windows_of(file, window), (file.tokens() - 1) / window);
  for (std::int64_t k = 0; k < windows_of(file, window); ++k) {
    const Expected expected = expect_window(documents, k, window);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(window)), labels(tokens), cu_seqlens = {0};
    const std::int64_t valid = read_window(file, k, 257, tokens, labels, 0, cu_seqlens);
    ASSERT_EQ(tokens, expected.tokens) << k;
    ASSERT_EQ(labels, expected.labels) << k;
    ASSERT_EQ(cu_seqlens, expected.cu_seqlens) << k;
    ASSERT_EQ(valid, expected.valid) << k;
    ASSERT_EQ(count_labels(file, k, window), expected.valid) << k;
  }
}

TEST(Window, DocumentsAroundTheChunkSize) {
  const std::vector<std::int64_t> lengths = {1, 2, 63, 64, 65, 1, 1, 64, 2, 128, 63, 65, 200, 1};
  for (const std::int64_t window : {1, 2, 3, 63, 64, 65, 100, 128}) check_all_windows(lengths, window);
}

TEST(Window, EmptyDocumentsMakeNoSequence) {
  check_all_windows({0, 3, 0, 0, 5, 0, 1, 4, 0}, 4);
}

TEST(Window, OneLongDocumentAndManySingleTokens) {
  check_all_windows({500}, 64);
  check_all_windows(std::vector<std::int64_t>(100, 1), 16);
}

TEST(Window, CountsOnlyWindowsWithALastLabel) {
  const Scratch scratch;
  const TokenFile eight(write_documents(scratch.path("8"), numbered_documents({8})));
  const TokenFile nine(write_documents(scratch.path("9"), numbered_documents({9})));
  EXPECT_EQ(windows_of(eight, 4), 1);
  EXPECT_EQ(windows_of(nine, 4), 2);
  EXPECT_EQ(windows_of(eight, 8), 0);
  EXPECT_EQ(windows_of(TokenFile(write_documents(scratch.path("0"), {})), 4), 0);
}

}  // namespace
}  // namespace deltaport::test
