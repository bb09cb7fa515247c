// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "apps/call.hpp"
#include "config/support.hpp"
#include "deltaport/data/metadata.hpp"
#include "train/small_run.hpp"

namespace deltaport::test {
namespace {

/// Documents of bytes below 128 whose side-car says that the byte tokenizer made them.
void write_ascii_tokens(const std::string& prefix) {
  TokenWriter writer(prefix, TokenDtype::u16, Existing::replace);
  for (std::int32_t d = 0; d < 40; ++d) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 64; ++i) ids.push_back(97 + (i * (d + 1)) % 26);
    writer.append(ids);
    writer.end_document();
  }
  writer.publish(nullptr);
  TokenFileMetadata metadata;
  metadata.tokenizer = "byte";
  metadata.vocab_size = 257;
  metadata.max_id = 122;
  std::ofstream(prefix + ".meta.json") << to_json(metadata);
}

class Generate : public ::testing::Test {
 protected:
  Generate() {
    testing::write_small_run(folder_);
    write_ascii_tokens(folder_ / "train");
  }
  Outcome train(int vocabulary, const std::string& more = "") const {
    return call(concat("train ", folder_ / "run.yaml", " --train.steps=1 --schedule.warmup=0 --data.valid=[]",
                       " --model.vocab_size=", vocabulary, more));
  }
  testing::Folder folder_{concat("generate-", ::getpid())};
};

TEST_F(Generate, WritesFromARunOrItsCheckpoint) {
  const Outcome trained = train(257);
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  const std::string more = " --prompt 'so: ' --tokens 5 --temperature 0 2>/dev/null";
  const Outcome written = call("generate " + folder_ / "run" + more);
  EXPECT_EQ(written.exit_code, 0);
  EXPECT_EQ(written.text.rfind("so: ", 0), 0u) << written.text;
  EXPECT_EQ(call("generate " + folder_ / "run/checkpoints/step-00000001" + more).text, written.text);
}

TEST_F(Generate, ReadsCheckpointsInBfloat16) {
  const Outcome trained = train(257, " --train.precision=bfloat16");
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  EXPECT_TRUE(has(trained.text, "bfloat16")) << trained.text;
  const std::string command =
      "generate " + folder_ / "run" + " --prompt 'so: ' --tokens 5 --temperature 0 2>/dev/null";
  const Outcome written = call(command);
  EXPECT_EQ(written.exit_code, 0);
  EXPECT_EQ(written.text.rfind("so: ", 0), 0u) << written.text;
  EXPECT_GT(written.text.size(), 5u);
  EXPECT_EQ(call(command).text, written.text);
}

// Prompts of different lengths, each text as if it were alone, whatever the chunks.
TEST_F(Generate, WritesTheSameTextInAnyChunks) {
  const Outcome trained = train(257);
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  const std::string long_prompt =
      "abcdefghijklmnopqrstuvwxyz the quick brown fox jumps over lazy dogs, "
      "then again over the one that was not quite as lazy";
  const auto written = [&](const std::string& more) {
    const Outcome outcome =
        call("generate " + folder_ / "run" + " --tokens 12 --temperature 0 " + more + " 2>/dev/null");
    EXPECT_EQ(outcome.exit_code, 0) << more;
    return outcome.text;
  };
  const std::string alone = written("--prompt '" + long_prompt + "'");
  EXPECT_GT(alone.size(), long_prompt.size() + 1);
  const std::string brief = written("--prompt a"), empty = written("");
  for (const char* chunk :
       {"", "--prefill-chunk 1", "--prefill-chunk 3", "--prefill-chunk 64", "--prefill-chunk 99999999999"}) {
    const std::string batch = "--prompt a --prompt '" + long_prompt + "' --prompt '' " + std::string(chunk);
    EXPECT_EQ(written("--prompt '" + long_prompt + "' " + std::string(chunk)), alone) << chunk;
    EXPECT_EQ(written(batch), brief + "----\n" + alone + "----\n" + empty) << chunk;
  }
}

TEST_F(Generate, TellsTheSpeedOfPromptsAndOfSteps) {
  const Outcome trained = train(257);
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  const std::string command = "generate " + folder_ / "run" + " --prompt abc --prompt ef --temperature 0";
  const Outcome one = call(command + " --tokens 1 2>&1 >/dev/null");
  EXPECT_TRUE(has(one.text, "prefill: 7 tokens in ")) << one.text;  // each begins with an end of document
  EXPECT_FALSE(has(one.text, "decode:")) << one.text;
  EXPECT_TRUE(has(call(command + " --tokens 1 2>/dev/null").text, "abc"));
  const Outcome more =
      call("generate " + folder_ / "run" + " --prompt abc --temperature 0 --tokens 3 2>&1 >/dev/null");
  EXPECT_TRUE(has(more.text, "prefill: 4 tokens in ")) << more.text;
  EXPECT_TRUE(has(more.text, "decode: ")) << more.text;
  EXPECT_TRUE(has(more.text, " tokens/s\n")) << more.text;
}

TEST_F(Generate, RefusesChunksThatAreNoNumberOfTokens) {
  for (const char* wrong : {"0", "-3", "many", "1.5"}) {
    const Outcome refused = call(concat("generate somewhere --prefill-chunk=", wrong));
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_TRUE(has(refused.text, concat("--prefill-chunk: expected an integer >= 1, found '", wrong, "'")))
        << refused.text;
  }
}

// Ids of the tokenizer's that the model has no row for would be read from beyond its tensors.
TEST_F(Generate, RefusesAVocabularySmallerThanTheTokenizers) {
  const Outcome trained = train(128);
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  const Outcome refused = call("generate " + folder_ / "run" + " --prompt a --tokens 5");
  EXPECT_EQ(refused.exit_code, 2) << refused.text;
  EXPECT_TRUE(has(refused.text, "step-00000001"));
  EXPECT_TRUE(has(refused.text, "vocabulary of 128 is smaller than the tokenizer's 257"));
}

}  // namespace
}  // namespace deltaport::test
