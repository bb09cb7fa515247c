// SPDX-License-Identifier: Apache-2.0
#include "deltaport/checkpoint/hugging_face.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "checkpoint/file_system.hpp"
#include "checkpoint/hugging_face_fixture.hpp"
#include "checkpoint/model_fixture.hpp"
#include "checkpoint/non_finite.hpp"
#include "deltaport/config/load.hpp"
#include "deltaport/model/hybrid_lm.hpp"

namespace deltaport::test {
namespace {

using checkpoint::Architecture;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

struct Case {
  Architecture architecture;
  bool tied;
  FileDtype dtype;
  std::size_t files;
};

class RoundTrip : public ::testing::TestWithParam<Case> {};

TEST_P(RoundTrip, GivesTheSameBytes) {
  const Case& c = GetParam();
  const TempFolder temp;
  HuggingFaceFixture fixture(c.architecture, c.tied, c.dtype);
  fixture.files = c.files;
  const auto folder = fixture.write(temp / "hf");
  const ImportSummary imported = import_hugging_face(folder, temp / "native", Overwrite::refuse);
  EXPECT_EQ(imported.model.tie_word_embeddings, c.tied);
  const bool whole = c.architecture == Architecture::conditional_generation;
  EXPECT_EQ(imported.ignored.size(), whole ? 2u : 0u);

  const ExportSummary merged = export_hugging_face(
      {.checkpoint = temp / "native", .output = temp / "merged", .mode = ExportMode::merge});
  EXPECT_EQ(merged.other_tensors, whole ? 2 : 0);
  EXPECT_EQ(contents_of(temp / "merged"), contents_of(folder));

  export_hugging_face({.checkpoint = temp / "native", .output = temp / "text"});
  if (!whole && c.files == 1) {
    EXPECT_EQ(contents_of(temp / "text"), contents_of(folder));
  }
  const SafetensorsReader text(temp / "text" / "model.safetensors");
  EXPECT_EQ(text.tensors().size(), static_cast<std::size_t>(imported.tensors));
  EXPECT_EQ(text.contains("lm_head.weight"), !c.tied);
  for (const TensorEntry& entry : text.tensors()) {
    const auto& original = fixture.tensors.at(checkpoint::hugging_face_name(entry.name, c.architecture));
    std::vector<char> bytes(original.bytes.size());
    ASSERT_EQ(entry.end - entry.begin, bytes.size()) << entry.name;
    text.read_bytes(entry, 0, bytes.size(), bytes.data());
    EXPECT_EQ(bytes, original.bytes) << entry.name;
    EXPECT_EQ(entry.dtype, original.dtype) << entry.name;
  }
  EXPECT_TRUE(is_hugging_face_folder(temp / "text"));
  EXPECT_EQ(read_hugging_face_model(temp / "text").layer_pattern, small_qwen(c.tied).layer_pattern);
}

INSTANTIATE_TEST_SUITE_P(
    Folders, RoundTrip,
    ::testing::Values(Case{Architecture::causal_lm, true, FileDtype::bf16, 1},
                      Case{Architecture::causal_lm, false, FileDtype::f32, 1},
                      Case{Architecture::causal_lm, false, FileDtype::bf16, 3},
                      Case{Architecture::conditional_generation, true, FileDtype::bf16, 2},
                      Case{Architecture::conditional_generation, true, FileDtype::f32, 1},
                      Case{Architecture::conditional_generation, false, FileDtype::bf16, 3}));

TEST(Import, NamesEveryTensorThatDoesNotFit) {
  const TempFolder temp;
  HuggingFaceFixture fixture(Architecture::conditional_generation, true);
  fixture.tensors.erase("model.language_model.layers.1.self_attn.q_norm.weight");
  fixture.tensors.erase("model.language_model.norm.weight");
  fixture.add("model.language_model.layers.0.mlp.up_proj.weight", FileDtype::bf16, {12, 20});
  fixture.add("model.language_model.layers.4.mlp.up_proj.weight", FileDtype::bf16, {20, 12});
  fixture.tensors["model.language_model.layers.0.linear_attn.dt_bias"] = {
      FileDtype::i16, {4}, std::vector<char>(8)};
  const std::string text = message_of<Error>(
      [&] { import_hugging_face(fixture.write(temp / "hf"), temp / "native", Overwrite::refuse); });
  EXPECT_TRUE(has(text, "missing: model.language_model.layers.1.self_attn.q_norm.weight [8]")) << text;
  EXPECT_TRUE(has(text, "missing: model.language_model.norm.weight [12]")) << text;
  EXPECT_TRUE(has(text, "shape: model.language_model.layers.0.mlp.up_proj.weight is [12, 20]")) << text;
  EXPECT_TRUE(has(text, "unknown: model.language_model.layers.4.mlp.up_proj.weight [20, 12]")) << text;
  EXPECT_TRUE(has(text, "dtype: model.language_model.layers.0.linear_attn.dt_bias is I16")) << text;
  EXPECT_FALSE(std::filesystem::exists(temp / "native"));
  try {
    import_hugging_face(temp / "hf", temp / "native", Overwrite::refuse);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
  }
}

TEST(Import, TakesAHeadBesideATiedEmbeddingOnlyIfItIsTheSame) {
  const TempFolder temp;
  HuggingFaceFixture fixture(Architecture::causal_lm, true);
  fixture.tensors["lm_head.weight"] = fixture.tensors.at("model.embed_tokens.weight");
  const auto summary = import_hugging_face(fixture.write(temp / "same"), temp / "native", Overwrite::refuse);
  EXPECT_EQ(summary.notes.size(), 1u);
  export_hugging_face({.checkpoint = temp / "native", .output = temp / "merged", .mode = ExportMode::merge});
  EXPECT_EQ(contents_of(temp / "merged"), contents_of(temp / "same"));

  fixture.tensors["lm_head.weight"].bytes[3] ^= 1;
  const std::string text = message_of<Error>(
      [&] { import_hugging_face(fixture.write(temp / "other"), temp / "native2", Overwrite::refuse); });
  EXPECT_TRUE(has(text, "tied: lm_head.weight is not the embedding")) << text;
  HuggingFaceFixture untied(Architecture::causal_lm, false);
  untied.tensors.erase("lm_head.weight");
  const std::string missing = message_of<Error>(
      [&] { import_hugging_face(untied.write(temp / "untied"), temp / "native3", Overwrite::refuse); });
  EXPECT_TRUE(has(missing, "missing: lm_head.weight [19, 12]")) << missing;
}

TEST(Import, TellsOfValuesThatAreNoNumbers) {
  TempFolder temp;
  HuggingFaceFixture fixture(Architecture::causal_lm, true, FileDtype::bf16);
  const auto put = [&](const std::string& name, std::size_t element, std::vector<unsigned char> bytes) {
    auto& entry = fixture.tensors.at(name);
    std::copy(bytes.begin(), bytes.end(),
              entry.bytes.begin() + static_cast<std::ptrdiff_t>(element * bytes.size()));
  };
  const ImportSummary clean =
      import_hugging_face(fixture.write(temp / "clean"), temp / "a", Overwrite::refuse);
  EXPECT_TRUE(clean.warnings.empty());
  const std::string embedding = "model.embed_tokens.weight", norm = "model.norm.weight";
  put(embedding, 0, {0xC0, 0x7F});  // NaN
  put(embedding, 5, {0x81, 0xFF});  // NaN with a sign
  put(embedding, 6, {0x80, 0xFF});  // -infinity
  put(norm, 3, {0x80, 0x7F});       // infinity
  const ImportSummary summary =
      import_hugging_face(fixture.write(temp / "bad"), temp / "b", Overwrite::refuse);
  ASSERT_EQ(summary.warnings.size(), 2u);
  EXPECT_EQ(summary.warnings[0], embedding + ": of its values 2 are NaN and 1 is infinite");
  EXPECT_EQ(summary.warnings[1], norm + ": of its values 1 is infinite");
}

TEST(Import, CountsValuesThatAreNoNumbersInEveryType) {
  const auto count = [](FileDtype dtype, const auto& values) {
    const NonFinite found =
        count_non_finite(dtype, reinterpret_cast<const std::byte*>(values.data()), sizeof values);
    return std::pair(found.nans, found.infinities);
  };
  const float big = std::numeric_limits<float>::max(), inf = INFINITY;
  const std::array<float, 5> singles = {0.0f, -big, NAN, inf, -inf};
  EXPECT_EQ(count(FileDtype::f32, singles), std::pair(std::int64_t{1}, std::int64_t{2}));
  const std::array<double, 5> doubles = {NAN, -NAN, std::numeric_limits<double>::max(), inf, 1e-310};
  EXPECT_EQ(count(FileDtype::f64, doubles), std::pair(std::int64_t{2}, std::int64_t{1}));
  const std::array<std::uint16_t, 6> halves = {0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0xFE00, 0x7FFF};
  EXPECT_EQ(count(FileDtype::f16, halves), std::pair(std::int64_t{3}, std::int64_t{2}));
  EXPECT_EQ(count(FileDtype::bf16, halves), std::pair(std::int64_t{1}, std::int64_t{0}));
  EXPECT_EQ(count(FileDtype::i16, halves), std::pair(std::int64_t{0}, std::int64_t{0}));
}

TEST(Import, RefusesAnIndexThatIsNotTheFiles) {
  const TempFolder temp;
  HuggingFaceFixture fixture(Architecture::causal_lm, true);
  fixture.files = 2;
  const auto folder = fixture.write(temp / "hf");
  const auto index = folder / "model.safetensors.index.json";
  const std::string good = read_file(index);
  const auto error = [&] {
    return message_of<Error>([&] { import_hugging_face(folder, temp / "native", Overwrite::refuse); });
  };
  std::string moved = good;
  moved.replace(moved.find("model-00001-of"), 14, "model-00002-of");
  write_file(index, moved);
  EXPECT_TRUE(has(error(), "not in model-00002-of-00002.safetensors: model.embed_tokens.weight")) << error();
  write_file(index, "{\"weight_map\":{\"model.embed_tokens.weight\":\"model-00001-of-00002.safetensors\"}}");
  EXPECT_TRUE(has(error(), "not in the index: model.layers.0.input_layernorm.weight") ||
              has(error(), "not in the index: model.layers.0"))
      << error();
  write_file(index, "{\"weight_map\":{\"model.embed_tokens.weight\":\"../model.safetensors\"}}");
  EXPECT_TRUE(has(error(), "is not the name of a safetensors file")) << error();
  write_file(index, "{\"weight_map\":{\"model.embed_tokens.weight\":\"model-00009-of-00009.safetensors\"}}");
  EXPECT_TRUE(has(error(), "missing: model-00009-of-00009.safetensors")) << error();
  write_file(index, good);
  EXPECT_EQ(error(), "");
}

TEST(Import, ListsWhatConfigJsonSaysThatCannotBeComputed) {
  const std::string good = checkpoint::causal_lm_config(small_qwen(true), FileDtype::bf16, nullptr);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  const auto error = [](const std::string& text) {
    return message_of<Error>([&] { checkpoint::parse_hugging_face_config(text, "config.json"); });
  };
  EXPECT_EQ(error(good), "");
  EXPECT_TRUE(has(error(with("\"silu\"", "\"gelu\"")),
                  "hidden_act: \"gelu\", but deltaport computes with \"silu\" only"));
  EXPECT_TRUE(has(error(with("\"hidden_size\": 12", "\"hidden_size\": -1")), "hidden_size: -1"));
  EXPECT_TRUE(has(error(with("\"hidden_size\"", "\"width\"")), "hidden_size: missing"));
  EXPECT_TRUE(has(error(with("\"rope_theta\"", "\"theta\"")), "rope_theta: missing"));
  EXPECT_TRUE(has(error(with("\"default\"", "\"yarn\"")), "rope_type: \"yarn\""));
  EXPECT_TRUE(has(error(with("full_attention\"", "sliding_attention\"")), "sliding_attention"));
  EXPECT_TRUE(has(error(with("qwen3_5_text", "qwen3_next")), "model_type is \"qwen3_next\""));
  EXPECT_TRUE(
      has(error(with("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3")), "must be a multiple"));
  EXPECT_TRUE(has(error("{"), "config.json: "));
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  EXPECT_TRUE(has(error(with("\"hidden_size\": 12", "\"hidden_size\": " + deep)),
                  "config.json: more than 100 arrays and objects inside each other"));
  const std::string both = with("\"silu\"", "\"gelu\"");
  EXPECT_TRUE(has(error(std::string(both).replace(both.find("\"default\""), 9, "\"yarn\"")), "gelu"));
}

TEST(Import, FindsThePresetsOfTheFamily) {
  for (const char* name : {"qwen3.5-0.8b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b"}) {
    LoadRequest request;
    request.overrides = {concat("--model.preset=", name)};
    request.environment.emplace();
    request.data = DataSection::optional;
    const ModelConfig model = load_config(request).config.model;
    const std::string text = checkpoint::causal_lm_config(model, FileDtype::bf16, nullptr);
    EXPECT_EQ(checkpoint::parse_hugging_face_config(text, name).model.preset, name);
    EXPECT_TRUE(has(text, "\"mrope_section\": [\n      11,\n      11,\n      10\n    ]")) << text;
    EXPECT_TRUE(has(model_yaml(model), concat("preset: ", name)));
  }
  EXPECT_EQ(preset_of(small_qwen(true)), "none");
}

TEST(Import, RefusesWhatIsThere) {
  const TempFolder temp;
  const auto folder = HuggingFaceFixture(Architecture::causal_lm, true).write(temp / "hf");
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  const auto error = [&](const char* output, Overwrite overwrite) {
    return message_of<Error>([&] { import_hugging_face(folder, temp / output, overwrite); });
  };
  EXPECT_TRUE(has(error("native", Overwrite::refuse), "holds something already"));
  EXPECT_EQ(error("native", Overwrite::replace), "");
  std::filesystem::create_directories(temp / "mine");
  write_file(temp / "mine" / "notes", "x");
  EXPECT_TRUE(has(error("mine", Overwrite::replace), "does not hold an earlier import"));
  write_file(temp / "file", "x");
  EXPECT_TRUE(has(error("file", Overwrite::replace), "is not a folder"));
}

/// Runs `action` with the n-th change on disk failing, for n = 0, 1, ... until it succeeds; calls `after`
/// each time.
template <class Action, class After>
int fail_at_each_operation(const Action& action, const After& after) {
  for (int n = 0;; ++n) {
    int count = 0;
    files::set_hook([&](files::Operation, const files::Path&) { return count++ == n ? EIO : 0; });
    bool failed = false;
    try {
      action();
    } catch (const Error&) {
      failed = true;
    }
    files::set_hook({});
    after(failed);
    if (count <= n) return n;
  }
}

TEST(Export, LeavesAWholeFolderOrNone) {
  const TempFolder temp;
  const auto folder = HuggingFaceFixture(Architecture::conditional_generation, true).write(temp / "hf");
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  for (const ExportMode mode : {ExportMode::merge, ExportMode::text}) {
    const ExportOptions options{.checkpoint = temp / "native", .output = temp / "out", .mode = mode};
    const int operations = fail_at_each_operation([&] { export_hugging_face(options); },
                                                  [&](bool failed) {
                                                    EXPECT_FALSE(std::filesystem::exists(temp / "out.tmp"));
                                                    // Only flushing the name may fail after it was given.
                                                    if (!failed || std::filesystem::exists(temp / "out")) {
                                                      EXPECT_EQ(contents_of(temp / "out").size(), 3u);
                                                    }
                                                    std::filesystem::remove_all(temp / "out");
                                                  });
    EXPECT_GT(operations, 8);
  }
}

TEST(Export, KeepsTheOldFolderWhenReplacingFails) {
  const TempFolder temp;
  const auto folder = HuggingFaceFixture(Architecture::causal_lm, true).write(temp / "hf");
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  ExportOptions options{.checkpoint = temp / "native", .output = temp / "out"};
  export_hugging_face(options);
  EXPECT_TRUE(has(message_of<Error>([&] { export_hugging_face(options); }), "--force"));
  const auto whole = contents_of(temp / "out");
  options.overwrite = Overwrite::replace;
  fail_at_each_operation([&] { export_hugging_face(options); },
                         [&](bool) { EXPECT_EQ(contents_of(temp / "out"), whole); });
  options.output = temp / "mine";
  std::filesystem::create_directories(temp / "mine");
  EXPECT_TRUE(
      has(message_of<Error>([&] { export_hugging_face(options); }), "is not a Hugging Face checkpoint"));
  options.output = folder;
  EXPECT_TRUE(has(message_of<Error>([&] { export_hugging_face(options); }), "must lie apart"));
  options.output = temp / "native" / "out";
  EXPECT_EQ(message_of<Error>([&] { export_hugging_face(options); }), "");
}

TEST(Export, CutsIntoFilesWithAnIndex) {
  const TempFolder temp;
  const auto folder = HuggingFaceFixture(Architecture::causal_lm, false).write(temp / "hf");
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  export_hugging_face({.checkpoint = temp / "native", .output = temp / "out", .shard_bytes = 2000});
  EXPECT_TRUE(std::filesystem::exists(temp / "out" / "model.safetensors.index.json"));
  import_hugging_face(temp / "out", temp / "again", Overwrite::refuse);
  export_hugging_face({.checkpoint = temp / "again", .output = temp / "one", .base = temp / "out"});
  EXPECT_EQ(read_file(temp / "one" / "model.safetensors"), read_file(folder / "model.safetensors"));
}

/// A checkpoint that training in T saved.
template <class T>
void save_trained(const ModelConfig& model, const std::filesystem::path& dir) {
  Runtime runtime;
  HybridLm<T> lm(model, LmOptions{});
  lm.parameters().allocate(runtime);
  lm.parameters().initialize(runtime, 3);
  AdamW<T> optimizer(runtime, lm.parameters(), OptimizerConfig{}, 1.0);
  TrainingState state;
  state.step = 5;
  RunConfig run;
  run.model = model;
  state.config_yaml = canonical_yaml(run);
  save_training_state(Communicator(), runtime, dir, state, lm.parameters(), optimizer, RetentionPolicy{});
}

TEST(Export, WritesTheTypesThatPublishedModelsHave) {
  const TempFolder temp;
  save_trained<bfloat16>(small_qwen(true), temp / "run");
  export_hugging_face({.checkpoint = temp / "run", .output = temp / "out"});
  const SafetensorsReader reader(temp / "out" / "model.safetensors");
  EXPECT_EQ(reader.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_FALSE(reader.contains("lm_head.weight"));
  for (const TensorEntry& entry : reader.tensors()) {
    const bool exact = entry.name.ends_with("A_log") || entry.name.ends_with("linear_attn.norm.weight");
    EXPECT_EQ(entry.dtype, exact ? FileDtype::f32 : FileDtype::bf16) << entry.name;
  }
  const std::string config = read_file(temp / "out" / "config.json");
  EXPECT_TRUE(has(config, "\"dtype\": \"bfloat16\"")) << config;
  EXPECT_TRUE(has(config, "\"tie_word_embeddings\": true"));
  EXPECT_TRUE(has(config, "\"Qwen3_5ForCausalLM\""));

  save_trained<float>(small_qwen(false), temp / "run32");
  export_hugging_face({.checkpoint = temp / "run32", .output = temp / "out32", .dtype = FileDtype::bf16});
  const SafetensorsReader rounded(temp / "out32" / "model.safetensors");
  EXPECT_EQ(rounded.at("lm_head.weight").dtype, FileDtype::bf16);
  EXPECT_EQ(rounded.at("model.layers.0.linear_attn.A_log").dtype, FileDtype::f32);
}

TEST(Export, RefusesWhatTheArchitectureCannotExpress) {
  const TempFolder temp;
  ModelConfig model = small_qwen(true);
  model.layer_pattern = {LayerType::gdn, LayerType::gdn2};
  save_trained<float>(model, temp / "run");
  const std::string text =
      message_of<Error>([&] { export_hugging_face({.checkpoint = temp / "run", .output = temp / "out"}); });
  EXPECT_TRUE(has(text, "layer 1 is gdn2")) << text;
  save_trained<float>(small_qwen(true), temp / "other");
  const auto merge = [&](const std::filesystem::path& base) {
    return message_of<Error>([&] {
      export_hugging_face(
          {.checkpoint = temp / "other", .output = temp / "out", .mode = ExportMode::merge, .base = base});
    });
  };
  EXPECT_TRUE(has(merge({}), "needs --base"));
  const auto untied = HuggingFaceFixture(Architecture::causal_lm, false).write(temp / "hf");
  EXPECT_TRUE(has(merge(untied), "model.tie_word_embeddings: true in the checkpoint, false in"))
      << merge(untied);
}

TEST(InitialWeights, ComeFromEitherKindOfFolder) {
  const TempFolder temp;
  const HuggingFaceFixture fixture(Architecture::conditional_generation, true);
  const auto folder = fixture.write(temp / "hf");
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  const SafetensorsReader reader(folder / "model.safetensors");
  for (const auto& from : {folder, temp / "native"}) {
    Runtime runtime;
    HybridLm<bfloat16> lm(small_qwen(true), LmOptions{});
    lm.parameters().allocate(runtime);
    load_initial_weights(runtime, from, Verify::hashes, small_qwen(true), lm.parameters());
    for (std::size_t i = 0; i < lm.parameters().infos().size(); ++i) {
      const ParameterInfo& info = lm.parameters().infos()[i];
      const std::string name = checkpoint::hugging_face_name(info.name, Architecture::conditional_generation);
      const auto index = static_cast<int>(i);
      EXPECT_EQ(to_vector(runtime.compute(), lm.parameters().master(index)), reader.read<float>(name))
          << name;
      if (info.kept == Kept::exact) continue;
      const auto values = to_vector(runtime.compute(), lm.parameters().value(index));
      const auto stored = reader.read<bfloat16>(name);
      EXPECT_EQ(std::memcmp(values.data(), stored.data(), stored.size() * 2), 0) << name;
    }
  }
  Runtime runtime;
  ModelConfig other = small_qwen(true);
  other.rms_norm_eps = 1e-5;
  HybridLm<float> lm(other, LmOptions{});
  lm.parameters().allocate(runtime);
  for (const auto& from : {folder, temp / "native"}) {
    const std::string text = message_of<Error>(
        [&] { load_initial_weights(runtime, from, Verify::hashes, other, lm.parameters()); });
    EXPECT_TRUE(has(text, "model.rms_norm_eps: 1.0e-06 in the folder, 1.0e-05 in the run")) << text;
  }
}

}  // namespace
}  // namespace deltaport::test
