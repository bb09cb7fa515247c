// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "data/gzip_text.hpp"
#include "data/prepared.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // they keep freed memory and shadows
#else
constexpr bool sanitized = false;
#endif

namespace deltaport::test {
namespace {

/// Largest resident memory of this process so far.
std::int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:") {
      std::int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  return 0;
}

/// Prepares, and holds the growth of the peak against the limit; not under sanitizers, which keep freed memory.
void expect_growth_below(std::int64_t limit_bytes, const PrepareOptions& options) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const std::int64_t before = peak_bytes();
  prepare(options);
  if (!sanitized) {
    EXPECT_LT(peak_bytes() - before, limit_bytes);
  }
}

constexpr std::int64_t mebibyte = std::int64_t{1} << 20;

#ifdef DELTAPORT_HAVE_ZLIB
TEST(PrepareMemory, AGzipBombIsStreamed) {
  const Scratch scratch;
  std::string bomb;
  const std::string member = gzip(std::string(16 * mebibyte, 'z'));
  for (int i = 0; i < 8; ++i) bomb += member;  // 128 MiB in 130 KiB
  const PrepareOptions options = options_for(scratch, {scratch.write("bomb.txt.gz", bomb)}, 1);
  expect_growth_below(48 * mebibyte, options);
  EXPECT_EQ(TokenFile(options.output).tokens(), 128 * mebibyte + 1);
}
#endif

TEST(PrepareMemory, LongLinesInManyThreadsTakeTurns) {
  const Scratch scratch;
  std::vector<std::string> inputs;
  const std::string line = "{\"text\": \"" + std::string(15 * mebibyte, 'x') + "\"}\n";
  for (int i = 0; i < 6; ++i) inputs.push_back(scratch.write(std::to_string(i) + ".jsonl", line));
  // One line takes about 20 MiB; six at once would take 120.
  expect_growth_below(64 * mebibyte, options_for(scratch, inputs, 6));
}

}  // namespace
}  // namespace deltaport::test
