// SPDX-License-Identifier: Apache-2.0
// Parameters and moments as tensors in files: which rank writes which, and how they are found again.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/folder.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport::checkpoint {

/// Families of tensors; each rank writes one file for `model` and one for the two others.
enum class Family { model, exp_avg, exp_avg_sq };

/// "model-00002-of-00004.safetensors" for rank 1 of 4.
std::string shard_file_name(Family family, int rank, int ranks);
/// Name of a parameter's tensor: the parameter's own, or with "exp_avg." or "exp_avg_sq." before it.
std::string tensor_name(Family family, const std::string& parameter);

/// The rank that writes each parameter: contiguous shares of the list, about the same number of elements
/// each.
std::vector<int> owners(const std::vector<ParameterInfo>& infos, int ranks);

/// The list of tensors of a checkpoint that `ranks` ranks write.
std::map<std::string, ManifestTensor> manifest_tensors(const std::vector<ParameterInfo>& infos,
                                                       FileDtype dtype, int ranks);

/// The opened shards of a checkpoint, tensors found by name.
class ShardSet {
 public:
  struct Found {
    const SafetensorsReader* reader;
    const TensorEntry* entry;
  };
  /// Opens the shards that hold tensors of the families and checks them against the manifest. Throws
  /// CheckpointError.
  ShardSet(const Path& checkpoint, const Manifest& manifest, const std::vector<Family>& families);

  /// Throws CheckpointError that names every tensor that is missing, unknown to the model or of another
  /// shape, or, when `dtype` is given, of another type.
  void check(const std::vector<ParameterInfo>& infos, const FileDtype* dtype) const;
  const Found& at(Family family, const std::string& parameter) const;

 private:
  Path checkpoint_;
  std::vector<Family> families_;
  std::map<std::string, SafetensorsReader> readers_;
  std::map<std::string, Found> tensors_;
};

}  // namespace deltaport::checkpoint
