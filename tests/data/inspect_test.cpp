// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/inspect.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "data/length_histogram.hpp"
#include "data/scratch.hpp"

namespace deltaport::test {
namespace {

std::string write_text(const Scratch& scratch, const std::vector<std::string>& documents) {
  const ByteTokenizer tokenizer;
  TokenWriter writer(scratch.path("i"), TokenDtype::u16, Existing::replace);
  for (const std::string& text : documents) {
    auto ids = tokenizer.encode(text);
    ids.push_back(tokenizer.end_of_document());
    writer.append(ids);
    writer.end_document();
  }
  writer.publish(&tokenizer);
  return scratch.path("i");
}

TEST(Inspect, ShowsHeaderHistogramAndDocuments) {
  const Scratch scratch;
  const std::string prefix =
      write_text(scratch, {"first\x1b[31m line\nsecond", std::string(500, 'x'), "third"});
  const std::string text = inspect_as_text({.prefix = prefix, .documents = 2, .verify = Verify::yes});
  for (const char* part :
       {"documents   3", "dtype       u16", "tokenizer   byte, vocabulary 257", "largest id  256",
        "(verified)", "256 to 511 ", "first\\x1b[31m line\\nsecond", "xxx..."})
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  EXPECT_FALSE(contains(text, "third"));
  EXPECT_FALSE(contains(text, "\x1b"));
}

TEST(Inspect, JsonHasTheSame) {
  const Scratch scratch;
  const std::string prefix = write_text(scratch, {"a \xff byte"});
  const std::string json = inspect_as_json({.prefix = prefix});
  for (const char* part :
       {"\"documents\": 1", "\"tokens\": 9", "\"max_id\": 256", "\"first\": 8", "a \xEF\xBF\xBD byte"})
    EXPECT_TRUE(contains(json, part)) << part << "\n" << json;
}

TEST(Inspect, WorksWithoutSideCar) {
  const Scratch scratch;
  const std::string prefix = write_documents(scratch.path("n"), {{5, 6, 7}}, TokenDtype::i32);
  const std::string text = inspect_as_text({.prefix = prefix});
  EXPECT_TRUE(contains(text, "tokenizer unknown") && contains(text, "5 6 7")) << text;
  EXPECT_TRUE(contains(inspect_as_json({.prefix = prefix}), "\"meta\": null"));
  EXPECT_THROW(inspect_as_text({.prefix = prefix, .verify = Verify::yes}), DataError);
  write_documents(scratch.path("n"), {});
  EXPECT_TRUE(contains(inspect_as_text({.prefix = prefix}), "documents   0"));
}

TEST(Inspect, TheBytesOwnTokenizerIsNotQuestioned) {
  const Scratch scratch;
  const std::string prefix = write_text(scratch, {"text"});
  EXPECT_FALSE(contains(inspect_as_text({.prefix = prefix, .tokenizer = "byte"}), "another tokenizer"));
  EXPECT_TRUE(contains(inspect_as_json({.prefix = prefix, .tokenizer = "byte"}),
                       "\"prepared_with_tokenizer\": true"));
  EXPECT_TRUE(contains(inspect_as_json({.prefix = prefix}), "\"prepared_with_tokenizer\": null"));
}

TEST(Inspect, NoticesDamage) {
  const Scratch scratch;
  const std::string prefix = write_text(scratch, {"hello"});
  std::string bin = read_file(prefix + ".bin");
  bin[0] = 'j';
  scratch.write("i.bin", bin);
  EXPECT_NO_THROW(inspect_as_text({.prefix = prefix}));
  const std::string error = error_of([&] { inspect_as_text({.prefix = prefix, .verify = Verify::yes}); });
  EXPECT_TRUE(contains(error, "i.bin: XXH3-128 is")) << error;
  std::string meta = read_file(prefix + ".meta.json");
  meta.replace(meta.find("\"tokens\": 6"), 11, "\"tokens\": 7");
  scratch.write("i.meta.json", meta);
  EXPECT_TRUE(contains(error_of([&] { inspect_as_text({.prefix = prefix}); }), "belongs to other files"));
}

TEST(LengthHistogram, CountsEveryDocumentOnce) {
  const Scratch scratch;
  const TokenFile file(write_documents(scratch.path("h"), numbered_documents({0, 1, 2, 3, 4, 7, 8, 100})));
  const LengthHistogram h = length_histogram(file);
  EXPECT_EQ(h.shortest, 0);
  EXPECT_EQ(h.longest, 100);
  EXPECT_DOUBLE_EQ(h.mean, 125.0 / 8.0);
  std::vector<std::int64_t> counts;
  for (const auto& bin : h.bins) counts.push_back(bin.documents);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{1, 1, 2, 2, 1, 0, 0, 1}));
  EXPECT_EQ(h.bins.back().first, 64);
  EXPECT_EQ(h.bins.back().last, 127);
}

}  // namespace
}  // namespace deltaport::test
