// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/prepare.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "data/gzip_text.hpp"
#include "data/prepared.hpp"
#include "deltaport/data/metadata.hpp"

namespace deltaport::test {
namespace {

using Texts = std::vector<std::string>;

std::string words(std::mt19937& random, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes)
    text += "word" + std::to_string(random() % 1000) + (random() % 9 == 0 ? "\n" : " ");
  text.resize(bytes);
  return text;
}

/// Files of every kind and size: many small ones, one of several blocks, one JSONL file that is divided into
/// ranges.
std::string mixed_corpus(const Scratch& scratch) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i)
    scratch.write("in/" + std::to_string(i % 7) + "/f" + std::to_string(i) + ".txt",
                  words(random, random() % 4000));
  scratch.write("in/3/large.txt", words(random, 3 * 1024 * 1024 + 17));
  std::string lines;
  while (lines.size() < (std::size_t{18} << 20))
    lines += R"({"id": 3, "text": ")" +
             std::string(1 + random() % 60000, 'a' + static_cast<char>(random() % 26)) + "\\n\"}\n";
  scratch.write("in/5/lines.jsonl", lines);
#ifdef DELTAPORT_HAVE_ZLIB
  scratch.write("in/2/packed.txt.gz", gzip(words(random, 1000 * 1000)));
#endif
  return scratch.path("in");
}

TEST(Prepare, SameBytesForAnyNumberOfThreads) {
  const Scratch scratch;
  PrepareOptions options = options_for(scratch, {mixed_corpus(scratch)});
  options.valid_fraction = 0.2;
  options.valid_output = scratch.path("out/valid");
  Texts first;
  for (const int threads : {1, 2, 3, 8}) {
    options.threads = threads;
    const PrepareSummary summary = prepare(options);
    Texts files;
    for (const char* name :
         {"data.bin", "data.idx", "data.meta.json", "valid.bin", "valid.idx", "valid.meta.json"})
      files.push_back(read_file(scratch.path(std::string("out/") + name)));
    if (first.empty()) first = files;
    EXPECT_EQ(files == first, true) << threads;
    EXPECT_EQ(summary.tokens, summary.text_bytes + summary.documents);
    EXPECT_EQ(TokenFile(options.output).tokens() + TokenFile(options.valid_output).tokens(), summary.tokens);
  }
}

TEST(Prepare, DividedJsonlKeepsEveryLine) {
  const Scratch scratch;
  std::string lines;
  Texts expected;
  std::mt19937 random(3);
  for (int i = 0; lines.size() < (std::size_t{34} << 20); ++i) {
    expected.push_back(std::to_string(i) + std::string(random() % 200000, 'x'));
    lines += R"({"text": ")" + expected.back() + "\"}" + (i % 5 == 0 ? "\n\n" : "\n");
  }
  lines.pop_back();  // no newline at the end
  EXPECT_EQ(prepared(options_for(scratch, {scratch.write("big.jsonl", lines)})) == expected, true);
}

TEST(Prepare, TextFilesAreOneDocumentEach) {
  const Scratch scratch;
  const std::string a = scratch.write("a.txt", "first\nsecond\r\n");
  const std::string b = scratch.write("noextension", std::string("bytes \x00\xff kept", 13));
  const PrepareOptions options = options_for(scratch, {b, a, a});
  EXPECT_EQ(prepared(options),
            (Texts{std::string("bytes \x00\xff kept", 13), "first\nsecond\r\n", "first\nsecond\r\n"}));
  const auto meta = read_metadata(options.output);
  ASSERT_TRUE(meta);
  EXPECT_EQ(meta->documents, 3);
  EXPECT_EQ(meta->tokens, 13 + 14 + 14 + 3);
  EXPECT_EQ(meta->max_id, 256);
  EXPECT_EQ(meta->dtype, "u16");
}

TEST(Prepare, DocumentsOfManyBlocks) {
  const Scratch scratch;
  std::mt19937 random(1);
  for (const std::size_t bytes : {512 * 1024 - 1, 512 * 1024, 512 * 1024 + 1, 5 * 1024 * 1024 + 3}) {
    const std::string text = words(random, bytes);
    EXPECT_EQ(prepared(options_for(scratch, {scratch.write("a.txt", text)})) == Texts{text}, true) << bytes;
  }
}

TEST(Prepare, JsonLines) {
  const Scratch scratch;
  const std::string lines =
      "{\"text\": \"plain\", \"meta\": {\"text\": 5, \"list\": [1, {\"text\": null}]}}\n"
      "  \r\n\n"
      "{\"other\": [], \"text\": \"esc \\u00e9 \\ud83c\\udf0d \\n \\\"\"}\r\n"
      "{\"text\": \"\"}\n"
      "{\"text\": \"nul \\u0000.\"}";
  const Texts expected = {"plain", "esc \xC3\xA9 \xF0\x9F\x8C\x8D \n \"", std::string("nul \0.", 6)};
  for (const char* name : {"a.jsonl", "a.json", "a.ndjson", "A.JSONL"}) {
    const PrepareOptions options = options_for(scratch, {scratch.write(name, lines)});
    EXPECT_EQ(prepared(options), expected) << name;
    EXPECT_EQ(prepare(options).empty_documents, 1);
  }
  PrepareOptions other = options_for(scratch, {scratch.write("c.jsonl", "{\"body\": \"b\", \"text\": 1}\n")});
  other.text_field = "body";
  EXPECT_EQ(prepared(other), Texts{"b"});
}

TEST(Prepare, LongJsonLines) {
  const Scratch scratch;
  std::string lines;
  Texts expected;
  for (int i = 0; i < 4; ++i) {
    expected.emplace_back(std::size_t{2} << 20, static_cast<char>('a' + i));
    lines += "{\"text\": \"" + expected.back() + "\"}\n";
  }
  const std::string a = scratch.write("a.jsonl", lines);
  Texts twice = expected;
  twice.insert(twice.end(), expected.begin(), expected.end());
  EXPECT_EQ(prepared(options_for(scratch, {a, a}, 4)) == twice, true);
}

TEST(Prepare, CutsLongDocuments) {
  const Scratch scratch;
  PrepareOptions options =
      options_for(scratch, {scratch.write("a.txt", "0123456789"), scratch.write("b.txt", "01234")});
  options.max_document_bytes = 5;
  const PrepareSummary summary = prepare(options);
  EXPECT_EQ(documents_of(options.output), (Texts{"01234", "01234"}));
  EXPECT_EQ(summary.cut_bytes, 5);
  EXPECT_EQ(summary.text_bytes, 10);
}

TEST(Prepare, SplitGoesByContent) {
  const Scratch scratch;
  Texts inputs;
  for (int i = 0; i < 400; ++i)  // every text twice
    inputs.push_back(scratch.write("s" + std::to_string(i) + ".txt", "text number " + std::to_string(i / 2)));
  PrepareOptions options = options_for(scratch, inputs);
  options.valid_fraction = 0.25;
  options.valid_output = scratch.path("out/valid");
  const PrepareSummary summary = prepare(options);
  const Texts train = documents_of(options.output);
  const Texts valid = documents_of(options.valid_output);
  EXPECT_EQ(train.size() + valid.size(), 400u);
  EXPECT_EQ(static_cast<std::size_t>(summary.valid_documents), valid.size());
  EXPECT_NEAR(static_cast<double>(valid.size()), 100.0, 45.0);  // 200 different texts: standard deviation 12
  const std::set<std::string> train_set(train.begin(), train.end());
  for (const std::string& text : valid) EXPECT_EQ(train_set.count(text), 0u) << text;
  // More input leaves every document on its side.
  options.inputs.insert(options.inputs.begin(), scratch.write("first.txt", "a new document"));
  prepare(options);
  const Texts more = documents_of(options.valid_output);
  const std::set<std::string> before(valid.begin(), valid.end());
  for (const std::string& text : more) EXPECT_TRUE(before.count(text) == 1 || text == "a new document");
}

#ifdef DELTAPORT_HAVE_ZLIB
TEST(Prepare, GzipByContent) {
  const Scratch scratch;
  const std::string text = "compressed text\n";
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const Texts inputs = {
      scratch.write("a.txt.gz", gzip(text)),
      scratch.write("b.jsonl.gz", gzip(lines)),
      scratch.write("c.txt", gzip(text)),                              // the name does not say so
      scratch.write("d.gz", gzip("two ") + gzip("members")),           // as cat makes them
      scratch.write("e.gz", gzip("padded") + std::string(600, '\0')),  // as tape tools leave them
      scratch.write("f.gz", gzip("") + gzip("after an empty member")),
  };
  EXPECT_EQ(prepared(options_for(scratch, inputs)),
            (Texts{text, "one", "two", text, "two members", "padded", "after an empty member"}));
}
#endif

}  // namespace
}  // namespace deltaport::test
