// SPDX-License-Identifier: Apache-2.0
// Every check of the reader by name, then bytes at random: an error or a data set that can be read, never a
// crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "data/index_bytes.hpp"
#include "data/index_layout.hpp"
#include "data/scratch.hpp"
#include "deltaport/data/token_file.hpp"

namespace deltaport::test {
namespace {

struct Damage {
  const char* what;
  std::function<void(IndexBytes&)> change;
  const char* expected;
};

const Damage damages[] = {
    {"magic", [](IndexBytes& i) { i.magic[0] = 'X'; }, ".idx: byte 0: not an index of tokens"},
    {"magic end", [](IndexBytes& i) { i.magic[8] = 'X'; }, ".idx: byte 0: "},
    {"version", [](IndexBytes& i) { i.version = 2; }, ".idx: byte 9: version 2; expected 1"},
    {"dtype 0", [](IndexBytes& i) { i.dtype = 0; }, ".idx: byte 17: unknown dtype code 0"},
    {"dtype 9", [](IndexBytes& i) { i.dtype = 9; }, ".idx: byte 17: unknown dtype code 9"},
    {"dtype i8", [](IndexBytes& i) { i.dtype = 2; }, "byte 17: dtype code 2 (i8) cannot hold token ids"},
    {"dtype i16", [](IndexBytes& i) { i.dtype = 3; }, "byte 17: dtype code 3 (i16)"},
    {"dtype f64", [](IndexBytes& i) { i.dtype = 6; }, "byte 17: dtype code 6 (f64)"},
    {"dtype f32", [](IndexBytes& i) { i.dtype = 7; }, "byte 17: dtype code 7 (f32)"},
    {"negative length", [](IndexBytes& i) { i.lengths[1] = -1; }, ".idx: byte 38: sequence 1 has length -1"},
    {"length too large", [](IndexBytes& i) { i.lengths[2] = 3; },
     ".idx: byte 42: sequence 2 ends at byte 12 of"},
    {"length too small", [](IndexBytes& i) { i.lengths[2] = 1; }, ".bin: byte 8: the file has 10 bytes"},
    {"first pointer", [](IndexBytes& i) { i.pointers[0] = 2; }, ".idx: byte 46: sequence 0 points at byte 2"},
    {"pointer", [](IndexBytes& i) { i.pointers[2] = 5; },
     ".idx: byte 62: sequence 2 points at byte 5; expected 6"},
    {"negative pointer", [](IndexBytes& i) { i.pointers[1] = -6; },
     ".idx: byte 54: sequence 1 points at byte -6"},
    {"first document", [](IndexBytes& i) { i.documents[0] = 1; },
     ".idx: byte 70: the first document index is 1"},
    {"documents descend", [](IndexBytes& i) { i.documents[2] = 0; }, ".idx: byte 86: document index 2 is 0"},
    {"document beyond", [](IndexBytes& i) { i.documents[1] = 4; }, ".idx: byte 78: document index 1 is 4"},
    {"last document", [](IndexBytes& i) { i.documents[3] = 2; },
     "byte 94: the last document index is 2; expected"},
    {"no documents", [](IndexBytes& i) { i.documents = {}; }, ".idx: byte 26: no document indices"},
    {"only the start", [](IndexBytes& i) { i.documents = {0}; }, "the last document index is 0; expected"},
};

TEST(TokenFileDamage, EachCheckNamesFileAndOffset) {
  const Scratch scratch;
  scratch.write("x.bin", small_bin());
  for (const Damage& damage : damages) {
    IndexBytes index = small_index();
    damage.change(index);
    scratch.write("x.idx", index.bytes());
    const std::string error = error_of([&] { TokenFile file(scratch.path("x")); });
    EXPECT_TRUE(contains(error, damage.expected)) << damage.what << ": " << error;
    EXPECT_TRUE(contains(error, scratch.path("x"))) << damage.what;
  }
}

TEST(TokenFileDamage, AbsurdCountsDoNotOverflow) {
  const Scratch scratch;
  scratch.write("x.bin", small_bin());
  const std::string good = small_index().bytes();
  const std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t count :
       {max, max / 12 + 1, max / 8 + 1, max / 4 + 1, max / 2, std::uint64_t{1} << 63,
        (std::uint64_t{1} << 62) + 3, std::uint64_t{1} << 32, std::uint64_t{6}}) {
    for (const std::size_t offset : {18, 26}) {
      std::string bytes;
      IndexBytes::put(bytes, count, 8);
      scratch.write("x.idx", std::string(good).replace(offset, 8, bytes));
      const std::string error = error_of([&] { TokenFile file(scratch.path("x")); });
      EXPECT_TRUE(contains(error, concat(".idx: byte ", offset, ": ", count))) << error;
    }
  }
}

TEST(TokenFileDamage, TrailingBytesAndSequenceModes) {
  const Scratch scratch;
  scratch.write("x.bin", small_bin());
  scratch.write("x.idx", small_index().bytes() + "\0");
  scratch.write("y.bin", small_bin());
  scratch.write("y.idx", small_index().bytes() + std::string(3, '\0'));
  scratch.write("z.bin", small_bin());
  scratch.write("z.idx", small_index().bytes() + std::string(2, '\0'));
  EXPECT_EQ(error_of([&] { TokenFile file(scratch.path("x")); }),
            "");  // "\0" is the empty string: still the good file
  EXPECT_TRUE(contains(error_of([&] { TokenFile file(scratch.path("y")); }), "byte 102: sequence modes"));
  EXPECT_TRUE(contains(error_of([&] { TokenFile file(scratch.path("z")); }), "byte 102: 2 bytes follow"));
}

/// Opens and, if that works, reads everything that can be read.
void open_and_read(const std::string& prefix) {
  try {
    const TokenFile file(prefix);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
    file.read(0, ids);
    for (std::int64_t d = 0; d <= file.documents(); ++d) ASSERT_LE(file.document_begin(d), file.tokens());
    for (std::int64_t t = 0; t < file.tokens(); ++t) {
      const std::int64_t d = file.document_of(t);
      ASSERT_TRUE(file.document_begin(d) <= t && t < file.document_begin(d + 1));
    }
  } catch (const DataError& e) {
    ASSERT_TRUE(contains(e.what(), prefix)) << e.what();
  }
}

TEST(TokenFileDamage, EveryTruncation) {
  const Scratch scratch;
  const std::string idx = small_index().bytes();
  const std::string bin = small_bin();
  scratch.write("t.bin", bin);
  for (std::size_t n = 0; n < idx.size(); ++n) {
    scratch.write("t.idx", idx.substr(0, n));
    EXPECT_NE(error_of([&] { TokenFile file(scratch.path("t")); }), "") << n;
  }
  scratch.write("t.idx", idx);
  for (std::size_t n = 0; n < bin.size(); ++n) {
    scratch.write("t.bin", bin.substr(0, n));
    EXPECT_NE(error_of([&] { TokenFile file(scratch.path("t")); }), "") << n;
  }
  scratch.write("t.bin", bin + "xx");
  EXPECT_NE(error_of([&] { TokenFile file(scratch.path("t")); }), "");
}

/// One to four bytes or fields changed; sometimes cut or lengthened.
std::string mutated(std::string bytes, std::mt19937_64& random) {
  const char interesting[] = {'\0', '\1', '\x7f', '\x80', '\xff', '\4', '\5', '\b'};
  for (auto changes = 1 + random() % 4; changes > 0; --changes) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 3) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = interesting[random() % sizeof(interesting)];
        break;
      default:  // a whole field
        for (std::size_t i = at; i < std::min(at + 8, bytes.size()); ++i)
          bytes[i] = interesting[random() % 2 * 4];
    }
  }
  if (random() % 8 == 0) bytes.resize(random() % (2 * bytes.size()));
  return bytes;
}

TEST(TokenFileDamage, RandomMutationsOfFiles) {
  const Scratch scratch;
  std::mt19937_64 random(20240229);
  scratch.write("m.bin", small_bin());
  for (int round = 0; round < 300; ++round) {
    scratch.write("m.idx", mutated(small_index().bytes(), random));
    open_and_read(scratch.path("m"));
  }
}

TEST(TokenFileDamage, RandomMutationsInMemory) {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int round = 0; round < 60000; ++round) {
    const std::string text = mutated(small_index().bytes(), random);
    // Exactly as large as the content, so that an address sanitizer sees the first byte too many.
    const std::vector<char> bytes(text.begin(), text.end());
    try {
      index_layout::parse(std::as_bytes(std::span(bytes)), "m.idx", 10, "m.bin");
      ++accepted;
    } catch (const DataError& e) {
      ASSERT_TRUE(contains(e.what(), ": byte ")) << e.what();
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 30000);
}

}  // namespace
}  // namespace deltaport::test
