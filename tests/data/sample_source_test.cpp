// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/sample_source.hpp"

#include <gtest/gtest.h>

#include <set>

#include "data/scratch.hpp"

namespace deltaport::test {
namespace {

const std::vector<std::int64_t> lengths = {1, 2, 63, 64, 65, 30, 200, 1, 17};

SampleSource open(const std::string& prefix, SampleOptions options) {
  return SampleSource({DataSource{prefix, 1.0}}, options);
}

TEST(SampleSource, BatchIsItsSamplesEndToEnd) {
  const Scratch scratch;
  const SampleSource source =
      open(write_documents(scratch.path("a"), numbered_documents(lengths)), {.seq_len = 16});
  const Batch batch = source.batch(3, 4);
  EXPECT_EQ(batch.first, 3);
  EXPECT_EQ(batch.count, 4);
  EXPECT_EQ(batch.cu_seqlens.front(), 0);
  EXPECT_EQ(batch.cu_seqlens.back(), 64);
  std::vector<std::int32_t> tokens, labels, cu_seqlens = {0};
  std::int64_t valid = 0;
  for (std::int64_t n = 3; n < 7; ++n) {
    const Batch one = source.batch(n, 1);
    for (std::size_t i = 1; i < one.cu_seqlens.size(); ++i)
      cu_seqlens.push_back(one.cu_seqlens[i] + static_cast<std::int32_t>(tokens.size()));
    tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
    labels.insert(labels.end(), one.labels.begin(), one.labels.end());
    valid += one.valid_tokens;
  }
  EXPECT_EQ(batch.tokens, tokens);
  EXPECT_EQ(batch.labels, labels);
  EXPECT_EQ(batch.cu_seqlens, cu_seqlens);
  EXPECT_EQ(batch.valid_tokens, valid);
  EXPECT_EQ(source.valid_tokens(3, 4), valid);
}

TEST(SampleSource, AnEpochIsEveryWindowOnce) {
  const Scratch scratch;
  const std::string prefix = write_documents(scratch.path("a"), numbered_documents({220}));
  const SampleSource plain = open(prefix, {.seq_len = 3, .order = SampleOrder::in_order});
  const SampleSource shuffled = open(prefix, {.seq_len = 3, .seed = 5});
  ASSERT_EQ(plain.samples(), 73);
  std::vector<std::vector<std::int32_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::vector<std::int32_t>> seen;
    auto& order = orders.emplace_back();
    for (std::int64_t i = 0; i < 73; ++i) {
      const Batch batch = shuffled.batch(epoch * 73 + i, 1);
      seen.insert(batch.tokens);
      order.push_back(batch.tokens[0]);
      EXPECT_EQ(plain.batch(epoch * 73 + i, 1).tokens[0], 3 * i);
    }
    EXPECT_EQ(seen.size(), 73u);
  }
  EXPECT_NE(orders[0], orders[1]);  // each epoch has its own order
  EXPECT_NE(orders[1], orders[2]);
}

TEST(SampleSource, SequentialReadsOneSourceAfterTheOther) {
  const Scratch scratch;
  const std::string a = write_documents(scratch.path("a"), {{1, 2, 3, 4, 5}});
  const std::string b = write_documents(scratch.path("b"), {{11, 12, 13, 14, 15, 16, 17}});
  const SampleSource source({{b, 0.0}, {a, 0.0}}, {.seq_len = 2, .order = SampleOrder::sequential});
  ASSERT_EQ(source.samples(), 5);
  std::vector<std::int32_t> firsts;
  for (std::int64_t n = 0; n < 6; ++n) firsts.push_back(source.batch(n, 1).tokens[0]);
  EXPECT_EQ(firsts, (std::vector<std::int32_t>{1, 3, 11, 13, 15, 1}));
  EXPECT_EQ(source.tokens(), 12);
}

TEST(SampleSource, NamesFileAndTokenOfAnIdOutsideTheVocabulary) {
  const Scratch scratch;
  const std::string prefix = write_documents(scratch.path("v"), {{1, 2, 3, 4, 5, 99, 7, 8, 9, 10, 11}});
  const SampleSource source = open(prefix, {.seq_len = 4, .vocab_size = 50, .order = SampleOrder::in_order});
  EXPECT_NO_THROW(source.batch(0, 1));  // the last label is token 4
  const std::string error = error_of([&] { source.batch(1, 1); });
  EXPECT_TRUE(contains(error, "v.bin: token 5: id 99") && contains(error, "(0 to 49)")) << error;
  // A bad id that is only a label.
  const SampleSource label = open(prefix, {.seq_len = 5, .vocab_size = 50, .order = SampleOrder::in_order});
  EXPECT_TRUE(contains(error_of([&] { label.batch(0, 1); }), "v.bin: token 5: id 99"));
}

TEST(SampleSource, RefusesNegativeIds) {
  const Scratch scratch;
  write_documents(scratch.path("n"), {{1, 2, 3, 4}}, TokenDtype::i32);
  std::string bin = read_file(scratch.path("n.bin"));
  bin.replace(4, 4, "\xFE\xFF\xFF\xFF");
  scratch.write("n.bin", bin);
  const SampleSource source = open(scratch.path("n"), {.seq_len = 3});
  EXPECT_TRUE(contains(error_of([&] { source.batch(0, 1); }), "n.bin: token 1: id -2"));
}

TEST(SampleSource, RefusesWhatItCannotUse) {
  const Scratch scratch;
  const std::string prefix = write_documents(scratch.path("a"), numbered_documents({16}));
  const std::string error = error_of([&] { open(prefix, {.seq_len = 16}); });
  EXPECT_TRUE(contains(error, "a.bin: 16 tokens are too few for one sample of 16")) << error;
  EXPECT_NO_THROW(open(prefix, {.seq_len = 15}));
  EXPECT_THROW(open(write_documents(scratch.path("e"), {}), {.seq_len = 1}), DataError);
  EXPECT_THROW(SampleSource({}, {}), ConfigError);
  EXPECT_THROW(open(prefix, {.seq_len = 0}), ConfigError);
  EXPECT_THROW(open(prefix, {.seq_len = 4, .vocab_size = 0}), ConfigError);
  EXPECT_THROW(SampleSource({{prefix, 0.0}}, {.seq_len = 4}), ConfigError);
  const SampleSource source = open(prefix, {.seq_len = 4});
  EXPECT_THROW(source.batch(-1, 1), ShapeError);
  EXPECT_THROW(source.batch(0, 0), ShapeError);
  EXPECT_THROW(source.batch(0, std::int64_t{1} << 40), ShapeError);
}

TEST(Fingerprint, ChangesWhenTheSamplesWould) {
  const Scratch scratch;
  const std::string prefix = write_documents(scratch.path("a"), numbered_documents(lengths));
  const SampleOptions base{.seq_len = 16, .vocab_size = 257, .seed = 1};
  const std::string fingerprint = open(prefix, base).fingerprint();
  EXPECT_EQ(fingerprint.size(), 32u);
  EXPECT_EQ(open(prefix, base).fingerprint(), fingerprint);
  std::set<std::string> others = {fingerprint};
  SampleOptions o = base;
  o.seq_len = 17;
  others.insert(open(prefix, o).fingerprint());
  o = base;
  o.seed = 2;
  others.insert(open(prefix, o).fingerprint());
  o = base;
  o.order = SampleOrder::in_order;
  others.insert(open(prefix, o).fingerprint());
  others.insert(SampleSource({{prefix, 2.0}}, base).fingerprint());
  others.insert(open(write_documents(scratch.path("b"), numbered_documents(lengths)), base).fingerprint());
  auto changed = numbered_documents(lengths);
  changed[3][5] = 7;
  others.insert(open(write_documents(scratch.path("c/a"), changed), base).fingerprint());
  EXPECT_EQ(others.size(), 7u);
  o = base;
  o.vocab_size = 300;  // a padded vocabulary changes no sample
  EXPECT_EQ(open(prefix, o).fingerprint(), fingerprint);
  const std::string moved = write_documents(scratch.path("elsewhere/a"), numbered_documents(lengths));
  EXPECT_EQ(open(moved, base).fingerprint(), fingerprint);
}

}  // namespace
}  // namespace deltaport::test
