// SPDX-License-Identifier: Apache-2.0
// Small Hugging Face folders with weights that follow from their names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/hugging_face_folder.hpp"
#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport::test {

/// Both kinds of layer, grouped heads, every dimension different.
inline ModelConfig small_qwen(bool tied) {
  ModelConfig m;
  m.vocab_size = 19;
  m.hidden_size = 12;
  m.num_hidden_layers = 4;
  m.intermediate_size = 20;
  m.layer_pattern = {LayerType::gdn, LayerType::attention};
  m.linear = {2, 4, 6, 5, 4, 64};
  m.attention = {4, 2, 8, 0.5, 1e4};
  m.tie_word_embeddings = tied;
  return m;
}

/// What a folder is to hold; write() writes it.
struct HuggingFaceFixture {
  struct Entry {
    FileDtype dtype;
    std::vector<std::int64_t> shape;
    std::vector<char> bytes;
  };
  std::map<std::string, Entry> tensors;
  std::string config;
  std::size_t files = 1;

  HuggingFaceFixture(checkpoint::Architecture architecture, bool tied, FileDtype dtype = FileDtype::bf16)
      : HuggingFaceFixture(architecture, small_qwen(tied), dtype) {}
  HuggingFaceFixture(checkpoint::Architecture architecture, const ModelConfig& model, FileDtype dtype) {
    for (const ParameterInfo& info : checkpoint::parameters_of(model)) {
      const bool exact = info.name.ends_with(".A_log") || info.name.ends_with(".linear_attn.norm.weight");
      std::vector<std::int64_t> shape;
      for (int i = 0; i < info.shape.rank(); ++i) shape.push_back(info.shape[i]);
      add(checkpoint::hugging_face_name(info.name, architecture), exact ? FileDtype::f32 : dtype, shape);
    }
    config = checkpoint::causal_lm_config(model, dtype, nullptr);
    if (architecture == checkpoint::Architecture::causal_lm) return;
    config =
        concat("{\"architectures\": [\"Qwen3_5ForConditionalGeneration\"], \"model_type\": \"qwen3_5\",\n",
               " \"text_config\": ", config,
               ", \"tie_word_embeddings\": ", model.tie_word_embeddings ? "true" : "false", "}\n");
    add("model.visual.patch_embed.proj.bias", dtype, {7});
    add("mtp.fc.weight", dtype, {3, 5});
  }

  void add(const std::string& name, FileDtype dtype, const std::vector<std::int64_t>& shape) {
    Entry entry{dtype, shape, {}};
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= extent;
    for (std::int64_t i = 0; i < elements; ++i) {
      const auto value = static_cast<float>(normal(5, stream_of(name), static_cast<std::uint64_t>(i)) * 0.3);
      const bfloat16 half = static_cast<bfloat16>(value);
      const char* from = dtype == FileDtype::f32 ? reinterpret_cast<const char*>(&value)
                                                 : reinterpret_cast<const char*>(&half);
      entry.bytes.insert(entry.bytes.end(), from, from + (dtype == FileDtype::f32 ? 4 : 2));
    }
    tensors[name] = std::move(entry);
  }

  std::filesystem::path write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    write_file(folder / "config.json", config);
    write_file(folder / "tokenizer.json", "{\"not\": \"read here\"}");
    std::vector<SafetensorsWriter> writers(files);
    std::string map;
    std::size_t next = 0;
    for (const auto& [name, entry] : tensors) {
      const std::size_t file = next++ % files;
      const std::vector<char>& bytes = entry.bytes;
      writers[file].add(
          name, entry.dtype, entry.shape, [&bytes](std::uint64_t first, std::uint64_t count, void* to) {
            std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(first), count, static_cast<char*>(to));
          });
      map += concat(map.empty() ? "" : ",", "\"", name, "\":\"", file_name(file), "\"");
    }
    for (std::size_t i = 0; i < files; ++i) writers[i].write(folder / file_name(i));
    if (files > 1)
      write_file(folder / "model.safetensors.index.json", concat("{\"weight_map\":{", map, "}}"));
    return folder;
  }
  std::string file_name(std::size_t i) const {
    return files == 1 ? "model.safetensors" : concat("model-0000", i + 1, "-of-0000", files, ".safetensors");
  }
};

/// Name and bytes of all files of a folder.
inline std::map<std::string, std::string> contents_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      all[std::filesystem::relative(entry.path(), folder).string()] = read_file(entry.path());
  return all;
}

}  // namespace deltaport::test
