// SPDX-License-Identifier: Apache-2.0
// Which files of a folder are read, in which order, and what is skipped.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "data/corpus_walker.hpp"
#include "data/prepared.hpp"

namespace deltaport::test {
namespace {

using Texts = std::vector<std::string>;

Texts walk(CorpusWalker& walker) {
  Texts paths;
  for (CorpusFile file; walker.next(file);) paths.push_back(file.path);
  return paths;
}

TEST(CorpusWalker, OrderIsThatOfThePathBytes) {
  const Scratch scratch;
  Texts expected;
  for (const char* name :
       {"a", "a!b", "a.txt", "a/x", "a/b/c", "a0", "B", "b", "\xC3\xA9", "a/x!", "ab/1", "ab.d/2"})
    if (!std::filesystem::is_directory(scratch.path(std::string("w/") + name)) && std::string(name) != "a")
      expected.push_back(scratch.write(std::string("w/") + name, "t"));
  std::sort(expected.begin(), expected.end());
  CorpusWalker walker({scratch.path("w")}, {"*"});
  EXPECT_EQ(walk(walker), expected);
}

TEST(CorpusWalker, InputsComeInTheOrderGiven) {
  const Scratch scratch;
  const std::string z = scratch.write("z.txt", "t");
  scratch.write("d/2.txt", "t");
  scratch.write("d/1.txt", "t");
  CorpusWalker walker({z, scratch.path("d/"), z}, {".txt"});
  EXPECT_EQ(walk(walker), (Texts{z, scratch.path("d/1.txt"), scratch.path("d/2.txt"), z}));
}

TEST(CorpusWalker, TakesTheExtensionsAskedFor) {
  const Scratch scratch;
  for (const char* name : {"a.txt", "b.TXT", "c.txt.gz", "d.md", "e.rst.GZ", "f.jsonl", "g.html", "copyright",
                           "h.json", "txt", ".hidden.txt"})
    scratch.write(std::string("d/") + name, "t");
  const auto names = [&](Texts extensions, std::int64_t others) {
    CorpusWalker walker({scratch.path("d")}, std::move(extensions));
    std::string all;
    for (const std::string& path : walk(walker)) all += path.substr(scratch.path("d/").size()) + " ";
    EXPECT_EQ(walker.other_files(), others);
    return all;
  };
  EXPECT_EQ(names(PrepareOptions().extensions, 4), ".hidden.txt a.txt b.TXT c.txt.gz d.md e.rst.GZ f.jsonl ");
  EXPECT_EQ(names({".html", "copyright"}, 9), "copyright g.html ");
  EXPECT_EQ(names({"*"}, 0),
            ".hidden.txt a.txt b.TXT c.txt.gz copyright d.md e.rst.GZ f.jsonl g.html h.json txt ");
}

TEST(CorpusWalker, LinksAndSpecialFiles) {
  const Scratch scratch;
  scratch.write("d/a.txt", "t");
  scratch.write("elsewhere/b.txt", "t");
  std::filesystem::create_symlink(scratch.path("elsewhere/b.txt"), scratch.path("d/link.txt"));
  std::filesystem::create_symlink(scratch.path("elsewhere"), scratch.path("d/folder"));
  std::filesystem::create_symlink(scratch.path("d"), scratch.path("d/loop"));
  std::filesystem::create_symlink("nowhere", scratch.path("d/broken.txt"));
  std::filesystem::create_symlink("self.txt", scratch.path("d/self.txt"));
  ASSERT_EQ(::mkfifo(scratch.path("d/pipe.txt").c_str(), 0600), 0);
  CorpusWalker walker({scratch.path("d")}, {".txt"});
  EXPECT_EQ(walk(walker), (Texts{scratch.path("d/a.txt"), scratch.path("d/link.txt")}));
  EXPECT_EQ(walker.special_files(), 5);
  CorpusWalker named({scratch.path("d/folder")}, {".txt"});  // named by the user: followed
  EXPECT_EQ(walk(named), Texts{scratch.path("d/folder/b.txt")});
}

TEST(PrepareCorpus, SkipsAndCounts) {
  const Scratch scratch;
  scratch.write("d/a.txt", "fine");
  scratch.write("d/b.txt", std::string("NUL\0byte", 8));
  scratch.write("d/c.txt", "");
  scratch.write("d/d.txt", "not UTF-8: \xff");
  scratch.write("d/e.html", "other");
  ASSERT_EQ(::mkfifo(scratch.path("d/f.txt").c_str(), 0600), 0);
  const PrepareOptions options = options_for(scratch, {scratch.path("d")});
  const PrepareSummary s = prepare(options);
  EXPECT_EQ(documents_of(options.output), (Texts{"fine", "not UTF-8: \xff"}));
  EXPECT_EQ(s.files, 2);
  EXPECT_EQ(s.binary_files, 1);
  EXPECT_EQ(s.empty_documents, 1);
  EXPECT_EQ(s.not_utf8, 1);
  EXPECT_EQ(s.other_files, 1);
  EXPECT_EQ(s.special_files, 1);
  EXPECT_EQ(s.text_bytes, 4 + 12);
}

}  // namespace
}  // namespace deltaport::test
