// SPDX-License-Identifier: Apache-2.0
// default < preset < files in order < environment < command line
#include "support.hpp"

namespace deltaport::test {
namespace {

class Precedence : public ::testing::Test {
 protected:
  LoadedConfig load(const std::vector<std::string>& texts, const std::vector<std::string>& overrides = {},
                    const Variables& environment = {}) {
    LoadRequest request;
    for (std::size_t i = 0; i < texts.size(); ++i)
      request.files.push_back(directory_.write(concat("f", i, ".yaml"), concat("version: 1\n", texts[i])));
    request.overrides = overrides;
    request.environment = environment;
    request.data = DataSection::optional;
    return load_config(request);
  }
  TemporaryDirectory directory_;
};

TEST_F(Precedence, EachLayerBeatsTheOneBefore) {
  const std::string file = "model: {preset: tiny}\n";
  const std::string own = "model: {preset: tiny, hidden_size: 72}\n";
  const std::string later = "model: {hidden_size: 80}\n";
  const Variables environment = {{"DELTAPORT_MODEL__HIDDEN_SIZE", "88"}};
  const std::vector<std::string> argument = {"--model.hidden_size=96"};
  EXPECT_EQ(load({}).config.model.hidden_size, 256);
  EXPECT_EQ(load({file}).config.model.hidden_size, 64);
  EXPECT_EQ(load({own}).config.model.hidden_size, 72);
  EXPECT_EQ(load({own, later}).config.model.hidden_size, 80);
  EXPECT_EQ(load({later, own}).config.model.hidden_size, 72);
  EXPECT_EQ(load({own, later}, {}, environment).config.model.hidden_size, 88);
  EXPECT_EQ(load({own, later}, argument, environment).config.model.hidden_size, 96);
}

TEST_F(Precedence, SectionsMergeAndListsAreReplaced) {
  const LoadedConfig loaded =
      load({"model: {layer_pattern: [gdn, gdn2, attention]}\ntrain: {steps: 50}\ndata: {train: [{path: a}, "
            "{path: b}]}\n",
            "model: {layer_pattern: [gdn2]}\ntrain: {micro_batch: 2}\ndata: {train: [{path: c}]}\n"});
  EXPECT_EQ(loaded.config.model.layer_pattern.size(), 1u);
  EXPECT_EQ(loaded.config.train.steps, 50);
  EXPECT_EQ(loaded.config.train.micro_batch, 2);
  ASSERT_EQ(loaded.config.data.train.size(), 1u);
  EXPECT_EQ(loaded.config.data.train[0].path, "c");
}

TEST_F(Precedence, PresetMayComeFromAnywhere) {
  EXPECT_EQ(load({}, {"--model.preset=tiny"}).config.model.hidden_size, 64);
  EXPECT_EQ(load({}, {}, {{"DELTAPORT_MODEL__PRESET", "tiny"}}).config.model.hidden_size, 64);
  EXPECT_EQ(load({"model: {preset: qwen3.5-9b}\n"}, {"--model.preset=none"}).config.model.hidden_size, 256);
  EXPECT_EQ(load({}, {"--model.preset=${env:P}"}, {{"P", "tiny"}}).config.model.hidden_size, 64);
}

TEST_F(Precedence, OriginsNameTheSource) {
  const LoadedConfig loaded =
      load({"model: {preset: tiny}\ntrain:\n  steps: 50\n", "eval: {batches: 3}\n"},
           {"--run.seed=5", "--set", "run.name=x"}, {{"DELTAPORT_LOGGING__EVERY", "2"}});
  EXPECT_EQ(loaded.origins.at("optimizer.lr"), "default");
  EXPECT_EQ(loaded.origins.at("model.hidden_size"), "preset tiny");
  EXPECT_EQ(loaded.origins.at("train.steps"), directory_.path() + "/f0.yaml:4");
  EXPECT_EQ(loaded.origins.at("eval.batches"), directory_.path() + "/f1.yaml:2");
  EXPECT_EQ(loaded.origins.at("logging.every"), "environment");
  EXPECT_EQ(loaded.origins.at("run.seed"), "--run.seed");
  EXPECT_EQ(loaded.origins.at("run.name"), "--set run.name");
}

TEST_F(Precedence, FilesAreKeptVerbatim) {
  const LoadedConfig loaded = load({"# note\nrun: {seed: 1}   # why\n"}, {"--run.name=x"});
  ASSERT_EQ(loaded.files.size(), 1u);
  EXPECT_EQ(loaded.files[0].path, directory_.path() + "/f0.yaml");
  EXPECT_EQ(loaded.files[0].text, "version: 1\n# note\nrun: {seed: 1}   # why\n");
  EXPECT_EQ(loaded.overrides, std::vector<std::string>{"--run.name=x"});
}

TEST_F(Precedence, AWrongEarlierValueThatIsReplacedDoesNotMatter) {
  EXPECT_EQ(load({"train: {steps: abc}\n"}, {"--train.steps=50"}).config.train.steps, 50);
}

}  // namespace
}  // namespace deltaport::test
