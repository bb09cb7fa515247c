// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/token_file.hpp"

#include <gtest/gtest.h>

#include "data/index_bytes.hpp"
#include "data/scratch.hpp"

namespace deltaport::test {
namespace {

std::vector<std::int32_t> read_all(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids);
  return ids;
}

TEST(TokenFile, ReadsHandBuiltFile) {
  const Scratch scratch;
  scratch.write("a.idx", small_index().bytes());
  scratch.write("a.bin", small_bin());
  const TokenFile file(scratch.path("a"));
  EXPECT_EQ(file.dtype(), TokenDtype::u16);
  EXPECT_EQ(file.sequences(), 3);
  EXPECT_EQ(file.documents(), 3);
  EXPECT_EQ(file.tokens(), 5);
  EXPECT_EQ(read_all(file), (std::vector<std::int32_t>{1, 258, 3, 65535, 5}));
  EXPECT_EQ(file.document_begin(0), 0);
  EXPECT_EQ(file.document_begin(1), 3);
  EXPECT_EQ(file.document_begin(2), 3);
  EXPECT_EQ(file.document_begin(3), 5);
  EXPECT_EQ(file.document_of(2), 0);
  EXPECT_EQ(file.document_of(3), 2);  // not the empty one
  EXPECT_EQ(file.document_of(4), 2);
}

TEST(TokenFile, ReadsEveryDtype) {
  const Scratch scratch;
  const struct {
    std::uint8_t code;
    int bytes;
    TokenDtype dtype;
  } rows[] = {
      {1, 1, TokenDtype::u8}, {4, 4, TokenDtype::i32}, {5, 8, TokenDtype::i64}, {8, 2, TokenDtype::u16}};
  for (const auto& row : rows) {
    std::string bin;
    for (const std::uint64_t id : {7, 200, 3}) IndexBytes::put(bin, id, row.bytes);
    IndexBytes index{.lengths = {3}, .pointers = {0}, .documents = {0, 1}};
    index.dtype = row.code;
    scratch.write("d.idx", index.bytes());
    scratch.write("d.bin", bin);
    const TokenFile file(scratch.path("d"));
    EXPECT_EQ(file.dtype(), row.dtype);
    EXPECT_EQ(read_all(file), (std::vector<std::int32_t>{7, 200, 3}));
  }
}

TEST(TokenFile, RefusesWideTokensThatDoNotFit) {
  const Scratch scratch;
  for (const std::int64_t bad : {std::int64_t{1} << 31, std::int64_t{-1}}) {
    std::string bin;
    IndexBytes::put(bin, 5, 8);
    IndexBytes::put(bin, static_cast<std::uint64_t>(bad), 8);
    IndexBytes index{.lengths = {2}, .pointers = {0}, .documents = {0, 1}};
    index.dtype = 5;
    scratch.write("w.idx", index.bytes());
    scratch.write("w.bin", bin);
    const TokenFile file(scratch.path("w"));
    const std::string error = error_of([&] { read_all(file); });
    EXPECT_TRUE(contains(error, "w.bin: byte 8: token id " + std::to_string(bad))) << error;
  }
}

TEST(TokenFile, OpensAnEmptyDataSet) {
  const Scratch scratch;
  scratch.write("e.idx", IndexBytes{.lengths = {}, .pointers = {}, .documents = {0}}.bytes());
  scratch.write("e.bin", "");
  const TokenFile file(scratch.path("e"));
  EXPECT_EQ(file.tokens(), 0);
  EXPECT_EQ(file.documents(), 0);
  EXPECT_EQ(file.document_begin(0), 0);
  file.read(0, {});
  EXPECT_THROW(file.document_of(0), ShapeError);
}

TEST(TokenFile, RefusesPositionsOutsideTheStream) {
  const Scratch scratch;
  scratch.write("a.idx", small_index().bytes());
  scratch.write("a.bin", small_bin());
  const TokenFile file(scratch.path("a"));
  std::vector<std::int32_t> ids(3);
  EXPECT_THROW(file.read(3, ids), ShapeError);
  EXPECT_THROW(file.read(-1, ids), ShapeError);
  EXPECT_THROW(file.read(std::int64_t{1} << 62, ids), ShapeError);
  EXPECT_THROW(file.document_begin(4), ShapeError);
  EXPECT_THROW(file.document_begin(-1), ShapeError);
  EXPECT_THROW(file.document_of(5), ShapeError);
}

TEST(TokenFile, NamesWhatIsMissing) {
  const Scratch scratch;
  EXPECT_TRUE(contains(error_of([&] { TokenFile file(scratch.path("none")); }), "none.idx: cannot open"));
  scratch.write("a.idx", small_index().bytes());
  EXPECT_TRUE(contains(error_of([&] { TokenFile file(scratch.path("a")); }), "a.bin: cannot open"));
  scratch.write("a.bin", small_bin());
  const std::string hint = error_of([&] { TokenFile file(scratch.path("a.bin")); });
  EXPECT_TRUE(contains(hint, "named without .bin")) << hint;
  std::filesystem::create_directory(scratch.path("f.idx"));
  EXPECT_TRUE(contains(error_of([&] { TokenFile file(scratch.path("f")); }), "not a regular file"));
  EXPECT_THROW(TokenFile(""), DataError);
}

}  // namespace
}  // namespace deltaport::test
