// SPDX-License-Identifier: Apache-2.0
// deltaport import, train and export, as a user calls them.
#include <gtest/gtest.h>

#include "apps/call.hpp"
#include "checkpoint/hugging_face_fixture.hpp"
#include "config/support.hpp"
#include "train/small_run.hpp"

namespace deltaport::test {
namespace {

const std::string golden = DELTAPORT_GOLDEN_DIR "/qwen3_5";

class HuggingFaceCommands : public ::testing::Test {
 protected:
  HuggingFaceCommands() {
    folder_.create();
    TokenWriter writer(folder_ / "train", TokenDtype::u16, Existing::replace);
    for (std::int32_t d = 0; d < 20; ++d) {
      std::vector<std::int32_t> ids;
      for (std::int32_t i = 0; i < 64; ++i) ids.push_back((i * (d + 1)) % 24);
      writer.append(ids);
      writer.end_document();
    }
    writer.publish(nullptr);
    std::ofstream(folder_ / "run.yaml")
        << "version: 1\nrun: {name: run, dir: '" << folder_ / "run"
        << "'}\ndata: {seq_len: 32, train: [{path: '" << folder_ / "train"
        << "'}]}\ntrain: {steps: 1, global_batch_tokens: 64}\n"
        << "schedule: {name: constant, warmup: 0}\noptimizer: {lr: 1.0e-30}\n";
  }
  std::string model_of(const std::string& folder) const { return read_file(folder + "/model.safetensors"); }
  testing::Folder folder_{concat("hugging-face-", ::getpid())};
};

// With a learning rate of nothing the weights that come out are those that went in.
TEST_F(HuggingFaceCommands, ATrainedModelGoesBack) {
  const Outcome imported = call("import " + golden + " -o " + folder_ / "native");
  ASSERT_EQ(imported.exit_code, 0) << imported.text;
  EXPECT_TRUE(has(imported.text, "6542 parameters in 27 tensors")) << imported.text;
  const Outcome trained = call("train " + folder_ / "native/model.yaml" + " " + folder_ / "run.yaml");
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  for (const char* mode : {"text", "merge"}) {
    const std::string out = folder_ / mode;
    const Outcome exported =
        call(concat("export ", folder_ / "run", " -o ", out, " --mode ", mode, " --base ", golden));
    ASSERT_EQ(exported.exit_code, 0) << exported.text;
    EXPECT_EQ(model_of(out), model_of(golden)) << mode;
    EXPECT_EQ(read_file(out + "/config.json"), read_file(golden + "/config.json")) << mode;
    EXPECT_EQ(
        call(concat("export ", folder_ / "run", " -o ", out, " --mode ", mode, " --base ", golden)).exit_code,
        2);
  }
}

TEST_F(HuggingFaceCommands, TrainingStartsFromTheFolderItself) {
  const std::string from = " --model.init_from=" + golden;
  const Outcome printed = call("import --print-model " + golden + " > " + folder_ / "model.yaml");
  ASSERT_EQ(printed.exit_code, 0) << printed.text;
  const Outcome trained = call("train " + folder_ / "model.yaml" + " " + folder_ / "run.yaml" + from);
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  const Outcome exported = call("export " + folder_ / "run" + " -o " + folder_ / "out");
  ASSERT_EQ(exported.exit_code, 0) << exported.text;
  EXPECT_EQ(model_of(folder_ / "out"), model_of(golden));

  const Outcome other =
      call("train " + folder_ / "model.yaml" + " " + folder_ / "run.yaml" + from +
           " --run.dir=" + folder_ / "other" + " --model.intermediate_size=32 --model.rms_norm_eps=1e-3");
  EXPECT_EQ(other.exit_code, 2) << other.text;
  EXPECT_TRUE(has(other.text, "model.intermediate_size: 24 in the folder, 32 in the run")) << other.text;
  EXPECT_TRUE(has(other.text, "model.rms_norm_eps: 1.0e-06 in the folder, 0.001 in the run")) << other.text;
}

TEST_F(HuggingFaceCommands, ARunGoesOnWithoutTheFolderThatItBeganFrom) {
  ASSERT_EQ(call("import " + golden + " -o " + folder_ / "native").exit_code, 0);
  const std::string train =
      "train " + folder_ / "native/model.yaml" + " " + folder_ / "run.yaml" + " --resume";
  const Outcome first = call(train);
  ASSERT_EQ(first.exit_code, 0) << first.text;
  const std::filesystem::path model = folder_ / "model.yaml";
  std::filesystem::rename(folder_ / "native/model.yaml", model);
  std::filesystem::remove_all(folder_ / "native");
  const std::string again = "train " + model.string() + " " + folder_ / "run.yaml" +
                            " --resume --train.steps=2 --allow-config-change train.steps";
  const Outcome second = call(again);
  EXPECT_EQ(second.exit_code, 0) << second.text;
  const Outcome anew = call(again + " --run.dir=" + folder_ / "other");
  EXPECT_EQ(anew.exit_code, 2) << anew.text;
  EXPECT_TRUE(has(anew.text, "is not a folder")) << anew.text;
}

// The tokenizer comes along, whichever way the weights came; texts of a batch are those of single calls.
TEST_F(HuggingFaceCommands, GenerateKnowsTheModelsTokenizer) {
  ModelConfig model = small_qwen(true);
  model.vocab_size = 720;
  const auto hf =
      HuggingFaceFixture(checkpoint::Architecture::causal_lm, model, FileDtype::f32).write(folder_ / "hf");
  const std::filesystem::path tokenizer = DELTAPORT_GOLDEN_DIR "/tokenizer/tokenizer.json";
  std::filesystem::copy_file(tokenizer, hf / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_EQ(call("import " + hf.string() + " -o " + folder_ / "native").exit_code, 0);
  const auto generate = [&](const std::string& more) {
    return call("generate " + folder_ / "native" + " --tokens 6 " + more + " 2>/dev/null");
  };
  const std::string greedy = "--temperature 0 ";
  const Outcome river = generate(greedy + "--prompt 'the river'"),
                other = generate(greedy + "--prompt 'Größe 123 and more'");
  if (!DELTAPORT_TEST_TOKENIZER) {
    EXPECT_EQ(river.exit_code, 2);
    return;
  }
  ASSERT_EQ(river.exit_code, 0) << river.text;
  EXPECT_TRUE(river.text.starts_with("the river") && river.text.size() > 11) << river.text;
  EXPECT_EQ(generate(greedy + "--prompt 'the river' --prompt 'Größe 123 and more'").text,
            river.text + "----\n" + other.text);
  EXPECT_EQ(generate(greedy + "--prompt 'the river' --tokenizer " + tokenizer.string()).text, river.text);
  EXPECT_NE(generate(greedy + "--prompt 'the river<|im_end|>' --special-tokens").text,
            generate(greedy + "--prompt 'the river<|im_end|>'").text);
  const Outcome sampled = generate("--prompt 'the river' --temperature 1 --top-k 50 --top-p 0.9 --seed 3");
  EXPECT_EQ(generate("--prompt 'the river' --temperature 1 --top-k 50 --top-p 0.9 --seed 3").text,
            sampled.text);
  EXPECT_NE(generate("--prompt 'the river' --temperature 1 --top-k 50 --top-p 0.9 --seed 4").text,
            sampled.text);

  std::ofstream(folder_ / "book.txt") << "The river turned slowly through the valley.\n";
  const Outcome prepared = call("data prepare " + folder_ / "book.txt" + " -o " +
                                folder_ / "train --force --tokenizer " + hf.string());
  ASSERT_EQ(prepared.exit_code, 0) << prepared.text;
  const Outcome trained = call("train " + folder_ / "native/model.yaml" + " " + folder_ / "run.yaml" +
                               " --data.seq_len=8 --train.global_batch_tokens=8");
  ASSERT_EQ(trained.exit_code, 0) << trained.text;
  EXPECT_EQ(
      call("generate " + folder_ / "run" + " --tokens 6 --temperature 0 --prompt 'the river' 2>/dev/null")
          .text,
      river.text);
}

TEST_F(HuggingFaceCommands, WrongCallsAreBadInput) {
  const Outcome nothing = call("import " + folder_.str() + " -o " + folder_ / "native");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(has(nothing.text, "it has no config.json")) << nothing.text;
  EXPECT_EQ(call("import " + golden).exit_code, 2);
  EXPECT_EQ(call("export " + folder_.str() + " -o " + folder_ / "out").exit_code, 5);
  EXPECT_EQ(call("export " + folder_.str() + " -o " + folder_ / "out --mode other").exit_code, 2);
}

}  // namespace
}  // namespace deltaport::test
