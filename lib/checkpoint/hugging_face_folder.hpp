// SPDX-License-Identifier: Apache-2.0
// The tensors of a Hugging Face folder, found by deltaport's names.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hugging_face_config.hpp"
#include "checkpoint/shards.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport::checkpoint {

/// Parameters of the model, without memory.
std::vector<ParameterInfo> parameters_of(const ModelConfig& model);

/// A tensor's name in a checkpoint of an architecture.
std::string hugging_face_name(const std::string& parameter, Architecture architecture);

class HuggingFaceFolder {
 public:
  /// Reads config.json and the header of every file of weights. Throws Error (exit code 2): config.json does
  /// not fit, a file is damaged, or index and files do not hold the same tensors.
  explicit HuggingFaceFolder(Path folder);

  const Path& path() const { return path_; }
  const HuggingFaceConfig& config() const { return config_; }
  /// In the order of their names.
  const std::map<std::string, SafetensorsReader>& files() const { return files_; }

  /// Throws Error (exit code 2) that names every tensor that is missing, unknown, of another shape, or of a
  /// type that is no float. A copy of the tied embedding as lm_head.weight may be there if it is equal.
  void check(const std::vector<ParameterInfo>& infos) const;
  /// nullptr when there is none.
  const ShardSet::Found* find(const std::string& parameter) const;
  /// The parameter that a tensor of the files is; the embedding for the head of a tied model; nothing for
  /// others.
  std::optional<std::string> parameter_of(const std::string& tensor) const;
  /// Tensors outside of the text model: "vision", "mtp".
  std::map<std::string, std::int64_t> others() const;
  /// True when a tied model's files hold its head too.
  bool has_tied_copy() const;

 private:
  void check_index(const Path& index, std::vector<std::string>& names);
  Path path_;
  HuggingFaceConfig config_;
  std::map<std::string, SafetensorsReader> files_;
  std::map<std::string, ShardSet::Found> tensors_;  // by the names in the files
};

/// Bytes [first_byte, first_byte + bytes) of a tensor as if it were stored in `dtype`: its own bits where
/// that is its type, else converted and rounded to nearest. Whole elements. `dtype` is F64, F32, BF16 or F16.
void read_as(const ShardSet::Found& tensor, FileDtype dtype, std::uint64_t first_byte, std::uint64_t bytes,
             void* to);

}  // namespace deltaport::checkpoint
