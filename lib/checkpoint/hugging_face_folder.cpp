// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/hugging_face_folder.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/input_file.hpp"
#include "core/json_depth.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/model/hybrid_lm.hpp"

namespace deltaport::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* embedding_name = "model.embed_tokens.weight";
constexpr const char* head_name = "lm_head.weight";
constexpr std::string_view text_prefix = "model.language_model.";

[[noreturn]] void refuse(const std::string& message) {
  files::raise(FileOrigin::user, message);
}

std::string prefix_of_others(std::string_view tensor) {
  if (tensor.starts_with("model.visual.")) return "vision";
  if (tensor.starts_with("mtp.")) return "mtp";
  return "";
}

bool is_float(FileDtype dtype) {
  return dtype == FileDtype::bf16 || dtype == FileDtype::f16 || dtype == FileDtype::f32 ||
         dtype == FileDtype::f64;
}

bool same_bytes(const ShardSet::Found& a, const ShardSet::Found& b) {
  if (a.entry->dtype != b.entry->dtype || a.entry->shape != b.entry->shape) return false;
  constexpr std::uint64_t most = std::uint64_t{1} << 22;
  const std::uint64_t size = a.entry->end - a.entry->begin;
  std::vector<char> left(static_cast<std::size_t>(std::min(most, size))), right(left.size());
  for (std::uint64_t first = 0; first < size; first += most) {
    const std::uint64_t bytes = std::min(most, size - first);
    a.reader->read_bytes(*a.entry, first, bytes, left.data());
    b.reader->read_bytes(*b.entry, first, bytes, right.data());
    if (std::memcmp(left.data(), right.data(), static_cast<std::size_t>(bytes)) != 0) return false;
  }
  return true;
}

std::string read_user_text(const Path& path) {
  const files::InputFile file(path, FileOrigin::user);
  constexpr std::uint64_t most = std::uint64_t{256} << 20;
  if (file.bytes() > most) refuse(path.string() + ": too large for an index");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, file.bytes(), text.data());
  return text;
}

template <class T>
void convert(const ShardSet::Found& tensor, std::uint64_t first_byte, std::uint64_t bytes, void* to) {
  tensor.reader->read_range(*tensor.entry, static_cast<std::int64_t>(first_byte / sizeof(T)),
                            static_cast<std::int64_t>(bytes / sizeof(T)), static_cast<T*>(to));
}

}  // namespace

std::vector<ParameterInfo> parameters_of(const ModelConfig& model) {
  HybridLm<float> described(model, LmOptions{});
  return described.parameters().infos();
}

std::string hugging_face_name(const std::string& parameter, Architecture architecture) {
  if (architecture == Architecture::causal_lm || !parameter.starts_with("model.")) return parameter;
  return std::string(text_prefix) + parameter.substr(6);
}

HuggingFaceFolder::HuggingFaceFolder(Path folder) : path_(std::move(folder)) {
  std::error_code ignored;
  if (!fs::is_regular_file(path_ / "config.json", ignored))
    refuse(concat(path_.string(), " is not a Hugging Face checkpoint: it has no config.json"));
  config_ = read_hugging_face_config(path_);
  std::vector<std::string> names;
  const Path index = path_ / index_name;
  if (fs::exists(index, ignored)) {
    check_index(index, names);
  } else {
    if (!fs::is_regular_file(path_ / "model.safetensors", ignored))
      refuse(concat(path_.string(), ": neither model.safetensors nor ", index_name, " is there"));
    names = {"model.safetensors"};
  }
  for (const std::string& name : names)
    files_.emplace(name, SafetensorsReader(path_ / name, FileOrigin::user));
  std::string problems;
  for (const auto& [name, reader] : files_)
    for (const TensorEntry& entry : reader.tensors())
      if (!tensors_.emplace(entry.name, ShardSet::Found{&reader, &entry}).second)
        problems += concat("\n  in two files: ", entry.name);
  if (fs::exists(index, ignored)) {
    const auto map = nlohmann::json::parse(read_user_text(index))["weight_map"];
    for (const auto& [tensor, file] : map.items()) {
      const auto found = tensors_.find(tensor);
      if (found == tensors_.end() || found->second.reader != &files_.at(file.get<std::string>()))
        problems += concat("\n  not in ", file.get<std::string>(), ": ", tensor);
    }
    for (const auto& [tensor, found] : tensors_)
      if (!map.contains(tensor))
        problems +=
            concat("\n  not in the index: ", tensor, " of ", found.reader->path().filename().string());
  }
  if (!problems.empty()) refuse(concat(path_.string(), ": index and files differ:", problems));
}

/// Names of the files, each once.
void HuggingFaceFolder::check_index(const Path& index, std::vector<std::string>& names) {
  const std::string text = read_user_text(index);
  const auto json = nests_too_deep(text) ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty())
    refuse(concat(index.string(), ": an object \"weight_map\" of tensor names and files is needed"));
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const bool plain = file.is_string() &&
                       fs::path(file.get<std::string>()).filename() == file.get<std::string>() &&
                       file.get<std::string>().ends_with(".safetensors");
    if (!plain)
      refuse(
          concat(index.string(), ": ", tensor, ": ", file.dump(), " is not the name of a safetensors file"));
    files.insert(file.get<std::string>());
  }
  std::string missing;
  std::error_code ignored;
  for (const std::string& file : files)
    if (!fs::is_regular_file(path_ / file, ignored)) missing += "\n  missing: " + file;
  if (!missing.empty())
    refuse(concat(path_.string(), ": files that the index names are not there:", missing));
  names.assign(files.begin(), files.end());
}

bool HuggingFaceFolder::has_tied_copy() const {
  return config_.model.tie_word_embeddings && tensors_.count(head_name) > 0;
}

const ShardSet::Found* HuggingFaceFolder::find(const std::string& parameter) const {
  const auto found = tensors_.find(hugging_face_name(parameter, config_.architecture));
  return found == tensors_.end() ? nullptr : &found->second;
}

std::optional<std::string> HuggingFaceFolder::parameter_of(const std::string& tensor) const {
  if (!prefix_of_others(tensor).empty()) return std::nullopt;
  if (tensor == head_name) return config_.model.tie_word_embeddings ? embedding_name : head_name;
  if (config_.architecture == Architecture::causal_lm) return tensor;
  if (!tensor.starts_with(text_prefix)) return std::nullopt;
  return "model." + tensor.substr(text_prefix.size());
}

std::map<std::string, std::int64_t> HuggingFaceFolder::others() const {
  std::map<std::string, std::int64_t> counts;
  for (const auto& each : tensors_) {
    const std::string group = prefix_of_others(each.first);
    if (!group.empty()) ++counts[group];
  }
  return counts;
}

void HuggingFaceFolder::check(const std::vector<ParameterInfo>& infos) const {
  std::string problems;
  std::set<std::string> expected;
  for (const ParameterInfo& info : infos) {
    const std::string name = hugging_face_name(info.name, config_.architecture);
    expected.insert(name);
    const TensorEntry* const entry =
        ShardSet::find(tensors_, name, info.shape, "config.json gives", problems);
    if (entry != nullptr && !is_float(entry->dtype))
      problems +=
          concat("\n  dtype: ", name, " is ", name_of(entry->dtype), "; known are BF16, F16, F32 and F64");
  }
  for (const auto& [name, found] : tensors_) {
    if (expected.count(name) || !prefix_of_others(name).empty()) continue;
    if (name == head_name && config_.model.tie_word_embeddings) {
      const ShardSet::Found* embedding = find(embedding_name);
      if (embedding != nullptr && !same_bytes(*embedding, found))
        problems += concat("\n  tied: ", name,
                           " is not the embedding, but config.json has tie_word_embeddings: true");
      continue;
    }
    problems += concat("\n  unknown: ", name, " ", found.entry->shape_string());
  }
  if (!problems.empty())
    refuse(concat(path_.string(), " is not the model that its config.json describes:", problems));
}

void read_as(const ShardSet::Found& tensor, FileDtype dtype, std::uint64_t first_byte, std::uint64_t bytes,
             void* to) {
  if (tensor.entry->dtype == dtype) return tensor.reader->read_bytes(*tensor.entry, first_byte, bytes, to);
  switch (dtype) {
    case FileDtype::f64:
      return convert<double>(tensor, first_byte, bytes, to);
    case FileDtype::f32:
      return convert<float>(tensor, first_byte, bytes, to);
    case FileDtype::bf16:
      return convert<bfloat16>(tensor, first_byte, bytes, to);
    case FileDtype::f16:
      return convert<float16>(tensor, first_byte, bytes, to);
    default:
      refuse(concat("tensor \"", tensor.entry->name, "\" cannot be written as ", name_of(dtype)));
  }
}

}  // namespace deltaport::checkpoint

namespace deltaport {

bool is_hugging_face_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(folder / "config.json", ignored)) return false;
  return std::filesystem::exists(folder / "model.safetensors", ignored) ||
         std::filesystem::exists(folder / "model.safetensors.index.json", ignored);
}

}  // namespace deltaport
