// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "data/prepared.hpp"
#include "data/text_splitter.hpp"
#include "deltaport/core/rng.hpp"
#include "deltaport/data/inspect.hpp"
#include "deltaport/data/metadata.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport::test {
namespace {

using Ids = std::vector<std::int32_t>;
const std::string golden = DELTAPORT_GOLDEN_DIR "/tokenizer";

std::unique_ptr<Tokenizer> tokenizer_of(SpecialTokens special_tokens) {
  return read_tokenizer({golden, special_tokens, ""});
}

/// A text that exercises every kind of piece; the same for the same seed.
std::string random_text(std::uint64_t seed, std::size_t parts) {
  static const std::vector<std::string> units = {
      "a",   "the ",         "river",       "Th", " ",      "  ",       "\n",       "\r\n",   "\n\n",
      "\t",  "'s",           "'LL",         "0",  "12",     "é",        "e\u0301",  "\u0301", "漢字",
      "한",  "\u1100\u1161", "ក",           "नि", "\u0958", "😀",        "👍🏽", "\u00a0", "\u180e",
      "...", "<|im_start|>", "<tool_call>", "<|", "\xff",   "\xe2\x82", "Line\n",   "\nNext "};
  std::string text;
  for (std::uint64_t i = 0; i < parts; ++i)
    text += units[static_cast<std::size_t>(uniform(seed, 1, i) * static_cast<double>(units.size()))];
  return text;
}

TEST(BpeTokenizer, GivesTheIdsOfTheTokenizersPackage) {
  const auto recognised = tokenizer_of(SpecialTokens::recognised),
             as_text = tokenizer_of(SpecialTokens::as_text);
  const auto cases = nlohmann::json::parse(read_file(golden + "/cases.json"));
  ASSERT_GT(cases.size(), 350u);
  for (const auto& each : cases) {
    const auto text = each["text"].get<std::string>();
    const Ids ids = each["ids"].get<Ids>();
    const Ids plain = each.value("as_text", ids);
    EXPECT_EQ(recognised->encode(text), ids) << escape_for_terminal(text);
    EXPECT_EQ(as_text->encode(text), plain) << escape_for_terminal(text);
    EXPECT_EQ(as_text->decode(plain), each.value("decoded", text)) << escape_for_terminal(text);
  }
}

TEST(BpeTokenizer, KeepsBytesThatAreNotUtf8) {
  const auto tokenizer = tokenizer_of(SpecialTokens::as_text);
  for (const std::string& text :
       {std::string("\xff"), std::string("a\xc3"), std::string("\xe2\x82 x\xf0\x9f\x98"),
        std::string("ok \xed\xa0\x80 ok"), std::string("\x80\x80\x80the river\xfe")})
    EXPECT_EQ(tokenizer->decode_bytes(tokenizer->encode(text)), text) << escape_for_terminal(text);
  Ids river = tokenizer->encode("the river");
  const Ids broken = tokenizer->encode(
      "\xff"
      "the river");
  EXPECT_EQ(Ids(broken.begin() + 1, broken.end()), river);  // pieces beside stay what they are
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::string text = random_text(seed, 40);
    std::string normal;
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t run = well_formed_prefix(rest);
      append_normalized(rest.substr(0, run), Normalization::nfc, normal);
      rest.remove_prefix(run);
      if (rest.empty()) break;
      normal += rest[0];
      rest.remove_prefix(1);
    }
    EXPECT_EQ(tokenizer->decode_bytes(tokenizer->encode(text)), normal) << escape_for_terminal(text);
  }
}

TEST(BpeTokenizer, FrontsAndRestsAreTheWhole) {
  for (const SpecialTokens special : {SpecialTokens::recognised, SpecialTokens::as_text}) {
    const auto tokenizer = tokenizer_of(special);
    int cuts = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const std::string text = random_text(1000 + seed, 900);
      Ids ids;
      std::string pending;
      const std::size_t block = 200 + 37 * seed;
      for (std::size_t at = 0; at < text.size(); at += block) {
        pending += text.substr(at, block);
        const std::size_t done = tokenizer->encode_front(pending, ids);
        cuts += done > 0 ? 1 : 0;
        pending.erase(0, done);
      }
      tokenizer->encode(pending, ids);
      EXPECT_EQ(ids, tokenizer->encode(text)) << seed;
    }
    EXPECT_GT(cuts, 100);
  }
}

TEST(BpeTokenizer, IsSharedByThreads) {
  const auto tokenizer = tokenizer_of(SpecialTokens::recognised);
  const std::string text = random_text(7, 20000);
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

TEST(BpeTokenizer, KnowsItsIdsAndItsFile) {
  const auto recognised = tokenizer_of(SpecialTokens::recognised),
             as_text = tokenizer_of(SpecialTokens::as_text);
  EXPECT_EQ(recognised->vocab_size(), 706);
  EXPECT_EQ(recognised->end_of_document(), 700);
  EXPECT_NE(recognised->hash(), as_text->hash());
  EXPECT_EQ(recognised->hash(), tokenizer_of(SpecialTokens::recognised)->hash());
  EXPECT_EQ(
      read_tokenizer({golden + "/tokenizer.json", SpecialTokens::as_text, "<|im_end|>"})->end_of_document(),
      702);
  EXPECT_EQ(recognised->decode(Ids{701, 700, 706, -1}), "<|im_start|>\uFFFD\uFFFD");
  const std::string error = error_of([] { read_tokenizer({golden, SpecialTokens::as_text, "<eos>"}); });
  EXPECT_TRUE(contains(error, "no added token <eos>") && contains(error, "<|im_end|>")) << error;
  EXPECT_TRUE(contains(error_of([] { read_tokenizer({"nowhere.json"}); }), "nowhere.json: no such file"));
}

TEST(BpeTokenizer, RefusesWhatItWouldComputeOtherwise) {
  const Scratch scratch;
  const std::string good = read_file(golden + "/tokenizer.json");
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    const std::string path = scratch.write("tokenizer.json", text.replace(at, from.size(), to));
    return error_of([&] { read_tokenizer({path}); });
  };
  EXPECT_EQ(error("\"version\"", "\"version\""), "");
  EXPECT_TRUE(contains(error("{\"type\":\"NFC\"}", "{\"type\":\"Lowercase\"}"),
                       "normalizer: {\"type\":\"Lowercase\"}"));
  EXPECT_TRUE(contains(error("\"Isolated\"", "\"Removed\""), "behavior: \"Removed\"; only \"Isolated\""));
  EXPECT_TRUE(contains(error("\"invert\":false", "\"invert\":true"), "invert: true"));
  EXPECT_TRUE(
      contains(error("\"add_prefix_space\":false", "\"add_prefix_space\":true"), "add_prefix_space: true"));
  EXPECT_TRUE(contains(error("\"type\":\"BPE\"", "\"type\":\"Unigram\""), "model.type: \"Unigram\""));
  EXPECT_TRUE(contains(error("\"byte_fallback\":false", "\"byte_fallback\":true"), "byte_fallback: true"));
  EXPECT_TRUE(contains(error("\"lstrip\":false", "\"lstrip\":true"), "lstrip: true"));
  EXPECT_TRUE(contains(error("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Metaspace\""),
                       "decoder: "));
  EXPECT_TRUE(contains(error("\"!\":0,", ""), "1 of the 256 bytes have no token"));
  EXPECT_TRUE(contains(error("(?!\\\\S)", "(?!\\\\S"), "pattern "));
  EXPECT_TRUE(contains(error("\\\\s+(?!", "\\\\h+(?!"), "\\h"));
  EXPECT_TRUE(contains(error("\"merges\":[", "\"merges\":[[\"q\",\"zz\"],"), "model.merges: number 0"));
  const std::string both = error("\"NFC\"", "\"Strip\"");
  EXPECT_TRUE(contains(both, "Strip"));
  EXPECT_TRUE(contains(error_of([&] { read_tokenizer({scratch.write("t.json", "{")}); }), "t.json: "));
}

TEST(TextSplitter, WritesWhiteSpaceOut) {
  EXPECT_EQ(with_explicit_space("a"), "a");
  EXPECT_EQ(with_explicit_space("\\\\s"), "\\\\s");
  const std::string space = with_explicit_space("\\s");
  EXPECT_EQ(space.front(), '[');
  EXPECT_TRUE(contains(space, "\\x{3000}"));
  EXPECT_EQ(with_explicit_space("\\S"), "[^" + space.substr(1));
  EXPECT_EQ(with_explicit_space("[^\\s\\p{L}]+"), "[^" + space.substr(1, space.size() - 2) + "\\p{L}]+");
  EXPECT_EQ(with_explicit_space("[]\\]a]\\d"), "[]\\]a]\\d");
  EXPECT_THROW(with_explicit_space("[\\S]"), DataError);
}

TEST(TextSplitter, QuickAnswersOnNormalFormsAreRight) {
  // What may join with a character before it: the second of every pair that a character decomposes into, and
  // the vowels and finals of Hangul.
  std::set<utf8proc_int32_t> seconds;
  for (utf8proc_int32_t c = 0x1161; c <= 0x11C2; ++c) seconds.insert(c);
  for (utf8proc_int32_t c = 0x80; c < 0x110000; ++c) {
    if (!utf8proc_codepoint_valid(c) || (c >= 0xAC00 && c <= 0xD7A3)) continue;
    utf8proc_int32_t out[8];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(c, out, 8, UTF8PROC_DECOMPOSE, &boundary);
    for (utf8proc_ssize_t i = 1; i < n; ++i) seconds.insert(out[i]);
  }
  int quick = 0;
  for (utf8proc_int32_t c = 0x80; c < 0x110000; ++c) {
    if (!utf8proc_codepoint_valid(c)) continue;
    utf8proc_uint8_t bytes[4];
    const auto size = utf8proc_encode_char(c, bytes);
    const std::string text(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    EXPECT_FALSE(is_surely_normalized(text, Normalization::nfkc));
    if (!is_surely_normalized(text, Normalization::nfc)) continue;
    ++quick;
    EXPECT_EQ(utf8proc_get_property(c)->combining_class, 0) << c;
    EXPECT_EQ(seconds.count(c), 0u) << c;
    utf8proc_uint8_t* normal = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    EXPECT_EQ(reinterpret_cast<const char*>(normal), text) << c;
    std::free(normal);
  }
  EXPECT_GT(quick, 45000);
}

// One line of more than 1 MiB: cut between characters, nothing lost. The letter has two bytes and is a token;
// the first byte of the text makes every cut fall into one.
TEST(Prepare, CutsWhatHasNoLines) {
  const Scratch scratch;
  std::string text = "a";
  while (text.size() < (std::size_t{3} << 20)) text += "\u043e";
  PrepareOptions options = options_for(scratch, {scratch.write("line.txt", text)});
  options.tokenizer.path = golden;
  prepare(options);
  const TokenFile file(options.output);
  Ids ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids);
  const auto tokenizer = tokenizer_of(SpecialTokens::as_text);
  EXPECT_TRUE(tokenizer->decode_bytes(ids) == text);
  std::size_t bytes = 0;
  for (const std::int32_t id : ids) bytes += tokenizer->decode_bytes(Ids{id}).size() == 1 ? 1 : 0;
  EXPECT_EQ(bytes, 1u);
  const std::string shown = inspect_as_text({.prefix = options.output, .documents = 1, .tokenizer = golden});
  EXPECT_TRUE(contains(shown, "a\u043e\u043e")) << shown;
}

TEST(Prepare, WritesTokensOfATokenizerFile) {
  const Scratch scratch;
  const auto tokenizer = tokenizer_of(SpecialTokens::as_text);
  std::string book;  // several blocks; line ends and none
  for (std::uint64_t i = 0; book.size() < 1500000; ++i)
    book += random_text(i, 50) + (i % 3 ? "\nSo it goes " : "");
  const std::vector<std::string> texts = {book, "short <|endoftext|>", std::string(300000, 'x')};
  std::vector<std::string> files;
  for (std::size_t i = 0; i < texts.size(); ++i)
    files.push_back(scratch.write(concat("text-", i, ".txt"), texts[i]));
  PrepareOptions options = options_for(scratch, files);
  options.tokenizer.path = golden;
  const PrepareSummary summary = prepare(options);
  EXPECT_EQ(summary.documents, 3);
  const TokenFile file(options.output);
  EXPECT_EQ(file.dtype(), TokenDtype::u16);
  for (std::int64_t d = 0; d < 3; ++d) {
    Ids expected = tokenizer->encode(texts[static_cast<std::size_t>(d)]);
    expected.push_back(tokenizer->end_of_document());
    Ids ids(static_cast<std::size_t>(file.document_begin(d + 1) - file.document_begin(d)));
    file.read(file.document_begin(d), ids);
    EXPECT_EQ(ids == expected, true) << "document " << d;
  }
  const auto metadata = read_metadata(options.output);
  ASSERT_TRUE(metadata.has_value());
  EXPECT_EQ(metadata->tokenizer, "tokenizer.json");
  EXPECT_EQ(metadata->tokenizer_hash, tokenizer->hash());
  EXPECT_EQ(metadata->end_of_document, 700);
  const std::string bytes = read_file(options.output + ".bin");
  options.threads = 1;
  prepare(options);
  EXPECT_TRUE(read_file(options.output + ".bin") == bytes);
}

// What reads JSON calls itself for each level.
TEST(BpeTokenizer, FilesThatNestWithoutEndAreRefused) {
  const Scratch scratch;
  const auto message = [&](const std::string& text) {
    try {
      read_tokenizer({scratch.write("tokenizer.json", text)});
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  EXPECT_NE(
      message("{\"normalizer\": " + deep + "}").find("more than 100 arrays and objects inside each other"),
      std::string::npos);
  EXPECT_EQ(message("{\"normalizer\": \"" + deep + "\"}").find("inside each other"), std::string::npos);
  EXPECT_NE(message("").find("the file is empty"), std::string::npos);
}

}  // namespace
}  // namespace deltaport::test
