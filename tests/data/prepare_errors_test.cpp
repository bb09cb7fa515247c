// SPDX-License-Identifier: Apache-2.0
// Each fault of an input: the error names the file and where, and no output appears.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/gzip_text.hpp"
#include "data/prepared.hpp"

namespace deltaport::test {
namespace {

/// The error of preparing one file; checks that nothing is left behind.
std::string error_for(const Scratch& scratch, const std::string& path, int threads = 2) {
  const PrepareOptions options = options_for(scratch, {path}, threads);
  const std::string error = error_of([&] { prepare(options); });
  if (std::filesystem::exists(scratch.path("out"))) {
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path("out"))) << error;
  }
  return error;
}

TEST(PrepareErrors, JsonLines) {
  const Scratch scratch;
  const struct {
    const char* line;
    const char* expected;
  } rows[] = {
      {"{\"text\": \"a\"", "invalid JSON"},
      {"{\"text\": \"a\"} trailing", "invalid JSON"},
      {"not json", "column 1: invalid JSON: expected true, false or null"},
      {"{\"text\": \"\xff\"}", "invalid JSON"},
      {"{\"text\": \"\\ud800\"}", "invalid JSON"},
      {"{\"text\": \"raw\x01control\"}", "invalid JSON"},
      {"[\"text\"]", "expected an object with the field \"text\", found an array"},
      {"\"text\"", "found a string"},
      {"{\"Text\": \"a\"}", "no field \"text\""},
      {"{\"meta\": {\"text\": \"nested\"}}", "no field \"text\""},
      {"{}", "no field \"text\""},
      {"{\"text\": 3}", "the field \"text\" is a number; expected a string"},
      {"{\"text\": null}", "is null"},
      {"{\"text\": {\"a\": 1}}", "is an object"},
      {"{\"text\": \"a\", \"text\": \"b\"}", "comes twice"},
  };
  for (const auto& row : rows) {
    const std::string path =
        scratch.write("bad.jsonl", std::string("{\"text\": \"fine\"}\n\n") + row.line + "\n{\"text\": 7}\n");
    const std::string error = error_for(scratch, path);
    EXPECT_TRUE(contains(error, path + ": line 3: ") && contains(error, row.expected)) << row.line << "\n"
                                                                                       << error;
    EXPECT_LT(error.size(), 500u);
  }
}

TEST(PrepareErrors, LineNumbersInDividedFiles) {
  const Scratch scratch;
  std::string lines;
  for (int i = 0; i < 39; ++i) lines += "{\"text\": \"" + std::string(std::size_t{1} << 20, 'x') + "\"}\n";
  const std::string error = error_for(scratch, scratch.write("big.jsonl", lines + "{\"text\": 1}\n"), 3);
  EXPECT_TRUE(contains(error, "big.jsonl: line 40: the field \"text\" is a number")) << error;
}

TEST(PrepareErrors, TooLongALine) {
  const Scratch scratch;
  const auto limit = static_cast<std::size_t>(max_jsonl_line_bytes);
  const std::string head = "{\"text\": \"";
  const std::string fits = head + std::string(limit - head.size() - 2, 'x') + "\"}";
  ASSERT_EQ(fits.size(), limit);
  const std::string error =
      error_for(scratch, scratch.write("l.jsonl", "\n" + fits.substr(0, limit - 2) + "x\"}\n"));
  EXPECT_TRUE(contains(error, "l.jsonl: line 2: longer than 32 MiB")) << error;
  EXPECT_EQ(error_of([&] { prepare(options_for(scratch, {scratch.write("m.jsonl", fits + "\n")})); }), "");
}

TEST(PrepareErrors, TheFirstErrorInOrderWins) {
  const Scratch scratch;
  for (int i = 0; i < 40; ++i)
    scratch.write("d/" + std::to_string(100 + i) + ".txt", std::string(50000, 'x'));
  scratch.write("d/120.jsonl", std::string(300000, '\n') + "broken");
  for (int i = 121; i < 140; ++i) scratch.write("d/" + std::to_string(i) + ".jsonl", "broken");
  for (const int threads : {1, 2, 8}) {
    const std::string error = error_for(scratch, scratch.path("d"), threads);
    EXPECT_TRUE(contains(error, "120.jsonl: line 300001: ")) << error;
  }
}

TEST(PrepareErrors, FilesThatCannotBeRead) {
  const Scratch scratch;
  EXPECT_TRUE(contains(error_for(scratch, scratch.path("none.txt")), "none.txt: cannot read"));
  ASSERT_EQ(::mkfifo(scratch.path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(
      contains(error_for(scratch, scratch.path("pipe")), "pipe: neither a regular file nor a folder"));
  if (::geteuid() == 0) return;  // root may read everything
  ::chmod(scratch.write("d/secret.txt", "x").c_str(), 0);
  EXPECT_TRUE(contains(error_for(scratch, scratch.path("d")), "secret.txt: cannot open"));
}

TEST(PrepareErrors, NothingToWrite) {
  const Scratch scratch;
  EXPECT_TRUE(contains(error_for(scratch, scratch.write("empty.txt", "")), "empty.txt: no documents found"));
  scratch.write("d/a.html", "x");
  EXPECT_TRUE(contains(error_for(scratch, scratch.path("d")), "1 files with other extensions"));
  EXPECT_TRUE(contains(error_for(scratch, scratch.write("blank.jsonl", "\n\n")), "no documents found"));
  PrepareOptions options = options_for(scratch, {scratch.write("one.txt", "x")});
  options.valid_fraction = 0.5;
  options.valid_output = scratch.path("out/valid");
  EXPECT_TRUE(contains(error_of([&] { prepare(options); }), "of 1 documents"));
}

TEST(PrepareErrors, Options) {
  const Scratch scratch;
  const PrepareOptions good = options_for(scratch, {scratch.write("a.txt", "x")});
  const auto refuses = [&](auto change) {
    PrepareOptions options = good;
    change(options);
    EXPECT_THROW(prepare(options), ConfigError);
  };
  refuses([](PrepareOptions& o) { o.inputs = {}; });
  refuses([](PrepareOptions& o) { o.output = ""; });
  refuses([](PrepareOptions& o) { o.threads = -1; });
  refuses([](PrepareOptions& o) { o.extensions = {}; });
  refuses([](PrepareOptions& o) { o.text_field = ""; });
  refuses([](PrepareOptions& o) { o.max_document_bytes = -1; });
  refuses([](PrepareOptions& o) { o.valid_fraction = 0.5; });
  refuses([](PrepareOptions& o) { o.valid_output = "x"; });
  refuses([](PrepareOptions& o) {
    o.valid_fraction = 1.0;
    o.valid_output = "x";
  });
  refuses([](PrepareOptions& o) {
    o.valid_fraction = 0.5;
    o.valid_output = o.output;
  });
  prepare(good);
  refuses([](PrepareOptions& o) { o.existing = Existing::refuse; });
}

#ifdef DELTAPORT_HAVE_ZLIB
TEST(PrepareErrors, Gzip) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 30000; ++i) text += std::to_string(i * i) + " ";
  const std::string good = gzip(text);
  const auto error = [&](const std::string& bytes) {
    return error_for(scratch, scratch.write("g.txt.gz", bytes));
  };
  EXPECT_TRUE(contains(error("plain text"), "g.txt.gz: byte 0: not a gzip file"));
  EXPECT_TRUE(contains(error(""), "g.txt.gz: byte 0: not a gzip file"));
  for (const std::size_t n : {std::size_t{2}, std::size_t{12}, good.size() / 2, good.size() - 1})
    EXPECT_TRUE(contains(error(good.substr(0, n)), concat("g.txt.gz: byte ", n, ": truncated gzip file")))
        << n;
  std::string broken = good;
  broken[broken.size() / 2] = static_cast<char>(~broken[broken.size() / 2]);
  EXPECT_TRUE(contains(error(broken), ": invalid gzip data"));
  std::string checksum = good;
  checksum[checksum.size() - 6] = static_cast<char>(~checksum[checksum.size() - 6]);
  EXPECT_TRUE(contains(error(checksum), "incorrect data check"));
  EXPECT_TRUE(contains(error(good + "tail"), concat("byte ", good.size(), ": bytes after the end")));
  EXPECT_TRUE(contains(error(good + std::string(3, '\0') + good), "bytes after the end"));
  EXPECT_TRUE(contains(error(good + good.substr(0, 20)), "truncated gzip file"));
}

TEST(PrepareErrors, GzipMutations) {
  const Scratch scratch;
  const std::string good = gzip("{\"text\": \"some text, some more text\"}\n{\"text\": \"x\"}\n");
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int bit : {0, 5}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      PrepareOptions options = options_for(scratch, {scratch.write("m.jsonl.gz", bytes)}, 1);
      error_of([&] { prepare(options); });  // header fields such as the time may change without harm
    }
}
#endif

TEST(PrepareErrors, OneSpotForBothOutputsInAnySpelling) {
  const Scratch scratch;
  const std::string input = scratch.write("in.txt", "text");
  std::filesystem::create_directories(scratch.path("out/sub"));
  std::filesystem::create_directory_symlink("out", scratch.path("link"));
  PrepareOptions options = options_for(scratch, {input});
  options.valid_fraction = 0.5;
  for (const char* same : {"out/data", "out/./data", "out//data", "out/sub/../data", "link/data"}) {
    options.valid_output = scratch.path(same);
    const std::string error = error_of<ConfigError>([&] { prepare(options); });
    EXPECT_TRUE(contains(error, "both outputs have the prefix " + options.output)) << same << ": " << error;
  }
  const auto relative = std::filesystem::relative(options.output);
  options.valid_output = relative.string();
  EXPECT_TRUE(contains(error_of<ConfigError>([&] { prepare(options); }), "both outputs")) << relative;
}

}  // namespace
}  // namespace deltaport::test
