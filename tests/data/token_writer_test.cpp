// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/token_writer.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "data/index_bytes.hpp"
#include "data/scratch.hpp"
#include "deltaport/data/metadata.hpp"
#include "deltaport/data/token_file.hpp"

namespace deltaport::test {
namespace {

bool exists(const std::string& path) {
  return std::filesystem::exists(path);
}

TEST(TokenDtype, FollowsTheFormatsRule) {
  EXPECT_EQ(dtype_for_vocab(257), TokenDtype::u16);
  EXPECT_EQ(dtype_for_vocab(65499), TokenDtype::u16);
  EXPECT_EQ(dtype_for_vocab(65500), TokenDtype::i32);
  EXPECT_EQ(dtype_for_vocab(248320), TokenDtype::i32);
}

TEST(TokenWriter, WritesExactlyTheLayout) {
  const Scratch scratch;
  const std::vector<std::vector<std::int32_t>> documents = {{1, 258, 3}, {}, {65535, 5}};
  write_documents(scratch.path("a"), documents);
  const IndexBytes expected{.lengths = {3, 0, 2}, .pointers = {0, 6, 6}, .documents = {0, 1, 2, 3}};
  EXPECT_EQ(read_file(scratch.path("a.idx")), expected.bytes());
  EXPECT_EQ(read_file(scratch.path("a.bin")), small_bin());
}

TEST(TokenWriter, RoundTripsEveryDtype) {
  const Scratch scratch;
  for (const TokenDtype dtype : {TokenDtype::u8, TokenDtype::u16, TokenDtype::i32, TokenDtype::i64}) {
    const auto top = static_cast<std::int32_t>(largest_id(dtype));
    write_documents(scratch.path("r"), {{0, 1, top}, {top, 2}}, dtype);
    const TokenFile file(scratch.path("r"));
    EXPECT_EQ(file.dtype(), dtype);
    std::vector<std::int32_t> ids(5);
    file.read(0, ids);
    EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, top, top, 2}));
  }
}

TEST(TokenWriter, RefusesIdsThatDoNotFit) {
  const Scratch scratch;
  EXPECT_THROW(write_documents(scratch.path("a"), {{256}}, TokenDtype::u8), DataError);
  EXPECT_THROW(write_documents(scratch.path("a"), {{65536}}, TokenDtype::u16), DataError);
  EXPECT_THROW(write_documents(scratch.path("a"), {{3, -1}}, TokenDtype::i32), DataError);
}

TEST(TokenWriter, DividesLongDocumentsIntoSequences) {
  const Scratch scratch;
  std::vector<std::int32_t> ids(23);
  std::iota(ids.begin(), ids.end(), 0);
  TokenWriter writer(scratch.path("s"), TokenDtype::u8, Existing::refuse, 10);
  writer.append(std::span(ids).first(7));
  writer.append(std::span(ids).subspan(7));
  writer.end_document();
  writer.append(std::span(ids).first(10));
  writer.end_document();
  writer.publish(nullptr);
  IndexBytes expected{.lengths = {10, 10, 3, 10}, .pointers = {0, 10, 20, 23}, .documents = {0, 3, 4}};
  expected.dtype = 1;
  EXPECT_EQ(read_file(scratch.path("s.idx")), expected.bytes());
  const TokenFile file(scratch.path("s"));
  EXPECT_EQ(file.document_begin(1), 23);
}

TEST(TokenWriter, LargerThanItsBuffers) {
  const Scratch scratch;
  constexpr std::int64_t documents = 400000;  // index arrays of several MB
  TokenWriter writer(scratch.path("l"), TokenDtype::u16, Existing::refuse);
  std::vector<std::int32_t> ids(7);
  for (std::int64_t d = 0; d < documents; ++d) {
    writer.append(std::span(ids).first(static_cast<std::size_t>(d % 7)));
    writer.end_document();
  }
  writer.publish(nullptr);
  const TokenFile file(scratch.path("l"));  // checks every pointer
  EXPECT_EQ(file.documents(), documents);
  EXPECT_EQ(file.document_begin(7 * 1000 + 3), 21 * 1000 + 3);
}

TEST(TokenWriter, NothingAppearsBeforePublish) {
  const Scratch scratch;
  {
    TokenWriter writer(scratch.path("p"), TokenDtype::u16, Existing::refuse);
    writer.append(std::vector<std::int32_t>{1, 2});
    writer.end_document();
    writer.seal(nullptr);
    EXPECT_FALSE(exists(scratch.path("p.bin")) || exists(scratch.path("p.idx")));
    EXPECT_THROW(writer.append(std::vector<std::int32_t>{1}), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path("")));  // abandoned: temporary files are gone too
}

TEST(TokenWriter, RefusesToReplaceUnlessTold) {
  const Scratch scratch;
  write_documents(scratch.path("o"), {{1, 2, 3}});
  const std::string error =
      error_of<ConfigError>([&] { TokenWriter w(scratch.path("o"), TokenDtype::u16, Existing::refuse); });
  EXPECT_TRUE(contains(error, "o.bin: the output exists already")) << error;
  write_documents(scratch.path("o"), {{9}});
  EXPECT_EQ(TokenFile(scratch.path("o")).tokens(), 1);
  EXPECT_THROW(TokenWriter("", TokenDtype::u16, Existing::refuse), ConfigError);
  EXPECT_THROW(TokenWriter(scratch.path(""), TokenDtype::u16, Existing::refuse), ConfigError);
}

TEST(TokenWriter, RefusesASecondWriter) {
  const Scratch scratch;
  TokenWriter writer(scratch.path("b"), TokenDtype::u16, Existing::refuse);
  const std::string error =
      error_of([&] { TokenWriter second(scratch.path("b"), TokenDtype::u16, Existing::refuse); });
  EXPECT_TRUE(contains(error, "another process is writing")) << error;
  writer.publish(nullptr);  // the first one is not disturbed
  EXPECT_EQ(TokenFile(scratch.path("b")).tokens(), 0);
}

TEST(TokenWriter, NeedsTheLastDocumentEnded) {
  const Scratch scratch;
  TokenWriter writer(scratch.path("n"), TokenDtype::u16, Existing::refuse);
  writer.append(std::vector<std::int32_t>{1});
  EXPECT_THROW(writer.publish(nullptr), Error);
}

TEST(TokenWriter, SideCarDescribesTheTokens) {
  const Scratch scratch;
  const ByteTokenizer tokenizer;
  TokenWriter writer(scratch.path("m"), TokenDtype::u16, Existing::refuse);
  writer.append(std::vector<std::int32_t>{104, 105, 256});
  writer.end_document();
  writer.publish(&tokenizer);
  const auto meta = read_metadata(scratch.path("m"));
  ASSERT_TRUE(meta);
  EXPECT_EQ(meta->tokenizer, "byte");
  EXPECT_EQ(meta->tokenizer_hash, tokenizer.hash());
  EXPECT_EQ(meta->vocab_size, 257);
  EXPECT_EQ(meta->end_of_document, 256);
  EXPECT_EQ(meta->documents, 1);
  EXPECT_EQ(meta->tokens, 3);
  EXPECT_EQ(meta->max_id, 256);
  EXPECT_EQ(meta->dtype, "u16");
  EXPECT_EQ(meta->xxh3.size(), 32u);
  EXPECT_FALSE(read_metadata(scratch.path("none")));
  write_documents(scratch.path("m"),
                  {{1}});  // without a tokenizer: a side-car of other tokens would be wrong
  EXPECT_FALSE(read_metadata(scratch.path("m")));
  scratch.write("m.meta.json", "{\"tokenizer\": 3}");
  EXPECT_TRUE(contains(error_of([&] { read_metadata(scratch.path("m")); }), "m.meta.json: damaged"));
}

}  // namespace
}  // namespace deltaport::test
