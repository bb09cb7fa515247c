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
  EXPECT_TRUE(contains(error("\\\\s+(?!", "\\\\s\\\\K+(?!"), "\\K is not known"));
  EXPECT_TRUE(contains(error("\\\\s+(?!", "\\\\C(?!"), "\\C is not known"));
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
  for (const char* unknown : {"a\\Kb", "\\C", "\\Q.\\E", "\\Ga", "(*SKIP)", "[\\K]", "\\h"})
    EXPECT_THROW(with_explicit_space(unknown), DataError) << unknown;
  for (const char* known : {"\\\\K", "K", "[(*]", "\\(*", "(\\*)"})
    EXPECT_EQ(with_explicit_space(known), known);
}

// An id can only stand for one token, and a token only have one id.
TEST(BpeTokenizer, RefusesAddedTokensWhoseIdsClash) {
  const Scratch scratch;
  const auto error = [&](const auto& change) {
    auto json = nlohmann::json::parse(read_file(golden + "/tokenizer.json"));
    change(json);
    const std::string path = scratch.write("tokenizer.json", json.dump());
    return error_of([&] { read_tokenizer({path}); });
  };
  using Json = nlohmann::json;
  const auto added = [](const Json& json, const char* text) {
    for (std::size_t i = 0; i < json["added_tokens"].size(); ++i)
      if (json["added_tokens"][i]["content"] == text) return i;
    return std::size_t{0};
  };
  EXPECT_EQ(error([](Json&) {}), "");
  const std::string vocabulary =
      error([&](Json& j) { j["added_tokens"][added(j, "<|im_start|>")]["id"] = 0; });
  EXPECT_TRUE(contains(vocabulary, "\"<|im_start|>\" has id 0, which is that of \"!\"")) << vocabulary;
  const std::string other = error([&](Json& j) { j["added_tokens"][added(j, "<|im_start|>")]["id"] = 702; });
  EXPECT_TRUE(contains(other, "id 702, which is that of \"")) << other;
  EXPECT_TRUE(contains(other, "<|im_start|>") && contains(other, "<|im_end|>")) << other;
  const std::string twice = error([&](Json& j) {
    Json again = j["added_tokens"][added(j, "<|im_start|>")];
    again["id"] = 900;
    j["added_tokens"].push_back(again);
  });
  EXPECT_TRUE(contains(twice, "\"<|im_start|>\" has id 900, but also id 701")) << twice;
  const std::string moved = error([&](Json& j) {
    Json token = j["added_tokens"][0];
    token["content"] = "!";
    token["id"] = 900;
    j["added_tokens"].push_back(token);
  });
  EXPECT_TRUE(contains(moved, "\"!\" has id 900, but also id 0")) << moved;
  // In both lists with the same id: one token.
  EXPECT_EQ(error([&](Json& j) {
              Json token = j["added_tokens"][0];
              token["content"] = "!";
              token["id"] = 0;
              j["added_tokens"].push_back(token);
              const Json& start = j["added_tokens"][added(j, "<|im_start|>")];
              j["model"]["vocab"]["<|im_start|>"] = start["id"];
            }),
            "");
}

std::string form_by_utf8proc(const std::string& text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::string normal(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
  std::free(mapped);
  return normal;
}

std::string normal_form(const std::string& text, Normalization form) {
  std::string normal;
  append_normalized(text, form, normal);
  return normal;
}

TEST(TextSplitter, NormalFormsAreThoseOfUtf8proc) {
  const std::vector<std::string> units = {"a",      "e",          "\u00e9", "\u0301", "\u0316", "\u0327",
                                          "\u0344", "\u0f73",     "\u0f71", "\u0f72", "\u0f81", "\u1100",
                                          "\u1161", "\u11a8",     "\uac00", "\ufdfa", "\u212b", "\u3099",
                                          "\u304b", "\U0001d15e", " ",      "\n"};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 60; ++i)
      text += units[static_cast<std::size_t>(uniform(seed, 3, i) * static_cast<double>(units.size()))];
    EXPECT_EQ(normal_form(text, Normalization::nfc), form_by_utf8proc(text, UTF8PROC_COMPOSE)) << seed;
    EXPECT_EQ(normal_form(text, Normalization::nfd), form_by_utf8proc(text, UTF8PROC_DECOMPOSE)) << seed;
    EXPECT_EQ(normal_form(text, Normalization::nfkc),
              form_by_utf8proc(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT))
        << seed;
    EXPECT_EQ(normal_form(text, Normalization::nfkd),
              form_by_utf8proc(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT))
        << seed;
  }
}

// Marks in the wrong order throughout: exchanging neighbours would take minutes.
TEST(TextSplitter, OrdersLongRunsOfMarks) {
  std::string text = "a", below, above;
  for (int i = 0; i < 100000; ++i) {
    text += "\u0301\u0316";
    below += "\u0316";
    above += "\u0301";
  }
  EXPECT_TRUE(normal_form(text, Normalization::nfd) == "a" + below + above);
  EXPECT_TRUE(normal_form(text, Normalization::nfc) == "\u00e1" + below + above.substr(2));
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

// The side-car has the tokenizer's hash, which options change too.
TEST(Inspect, SaysWhenDataWasPreparedWithAnotherTokenizer) {
  const Scratch scratch;
  auto json = nlohmann::json::parse(read_file(golden + "/tokenizer.json"));
  json["model"]["merges"].erase(json["model"]["merges"].size() - 1);
  const std::string other = scratch.write("tokenizer.json", json.dump());
  for (const bool recognised : {false, true})
    for (const char* end : {"", "<|im_end|>"}) {
      PrepareOptions options = options_for(scratch, {scratch.write("a.txt", "the river")});
      options.tokenizer = {golden, recognised ? SpecialTokens::recognised : SpecialTokens::as_text, end};
      options.existing = Existing::replace;
      prepare(options);
      const std::string same = inspect_as_text({.prefix = options.output, .tokenizer = golden});
      EXPECT_FALSE(contains(same, "another tokenizer")) << same;
      const std::string text = inspect_as_text({.prefix = options.output, .tokenizer = other});
      EXPECT_TRUE(contains(text, "prepared with another tokenizer than " + other)) << text;
      EXPECT_TRUE(contains(inspect_as_json({.prefix = options.output, .tokenizer = other}),
                           "\"prepared_with_tokenizer\": false"));
    }
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
