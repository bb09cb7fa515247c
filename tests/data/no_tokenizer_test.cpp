// SPDX-License-Identifier: Apache-2.0
// A build without PCRE2 and utf8proc.
#include <gtest/gtest.h>

#include "data/scratch.hpp"
#include "deltaport/data/tokenizer.hpp"

namespace deltaport::test {
namespace {

TEST(NoTokenizer, SaysWhatTheBuildLacks) {
  const std::string error =
      error_of<ConfigError>([] { make_tokenizer(TokenizerFile{.path = "tokenizer.json"}); });
  EXPECT_TRUE(contains(error, "DELTAPORT_ENABLE_TOKENIZER=ON")) << error;
  EXPECT_EQ(make_tokenizer(TokenizerFile{.path = "byte"})->name(), "byte");
}

}  // namespace
}  // namespace deltaport::test
