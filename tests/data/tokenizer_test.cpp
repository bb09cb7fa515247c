// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/tokenizer.hpp"

#include <gtest/gtest.h>

#include "deltaport/core/error.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport::test {
namespace {

TEST(ByteTokenizer, EveryByteComesBack) {
  const ByteTokenizer tokenizer;
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const auto ids = tokenizer.encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(ids[static_cast<std::size_t>(b)], b);
  EXPECT_EQ(tokenizer.decode_bytes(ids), all);
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.end_of_document(), 256);
}

TEST(ByteTokenizer, DecodesToValidText) {
  const ByteTokenizer tokenizer;
  const std::vector<std::int32_t> ids = {'a', 0xC3, 0xA9, 0xC3, 256, 'b', 0xFF, 257, -1, 0xE2, 0x82};
  const std::string text = tokenizer.decode(ids);
  EXPECT_EQ(text, "a\xC3\xA9\uFFFDb\uFFFD\uFFFD\uFFFD\uFFFD");
  Utf8Checker checker;
  EXPECT_TRUE(checker.accept(text) && checker.complete());
}

TEST(ByteTokenizer, AppendsAndHashes) {
  const ByteTokenizer tokenizer;
  std::vector<std::int32_t> ids = {1};
  tokenizer.encode("hi", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 'h', 'i'}));
  EXPECT_EQ(tokenizer.hash(), make_tokenizer("byte")->hash());
  EXPECT_EQ(tokenizer.hash().size(), 32u);
  EXPECT_THROW(make_tokenizer("bpe"), DataError);
}

}  // namespace
}  // namespace deltaport::test
