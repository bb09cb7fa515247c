// SPDX-License-Identifier: Apache-2.0
// Parameters and moments as tensors in files: which rank writes which, and how they are found again.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "checkpoint/folder.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport::checkpoint {

/// Families of tensors; each rank writes one file for `model` and one for the others.
enum class Family { model, master, exp_avg, exp_avg_sq };

/// Which families a checkpoint holds, and in which types: all the same, or bfloat16 weights with float32
/// masters.
struct Layout {
  FileDtype rounded = FileDtype::f32;  ///< of the model's weights, exact parameters left out
  FileDtype exact = FileDtype::f32;    ///< of exact parameters, masters and moments

  bool has_masters() const { return rounded != exact; }
  std::vector<Family> families() const;
  FileDtype dtype(Family family, const ParameterInfo& info) const {
    return family == Family::model && info.kept == Kept::rounded ? rounded : exact;
  }
  /// Bytes of all tensors.
  std::uint64_t bytes(const std::vector<ParameterInfo>& infos) const;
};
/// The layout in which ParameterSet<T> and AdamW<T> are saved.
template <class T>
constexpr Layout layout_of() {
  constexpr FileDtype exact = sizeof(Accumulate<T>) == 8 ? FileDtype::f64 : FileDtype::f32;
  return {std::is_same_v<T, bfloat16> ? FileDtype::bf16 : exact, exact};
}

/// "model-00002-of-00004.safetensors" for rank 1 of 4.
std::string shard_file_name(Family family, int rank, int ranks);
/// Name of a parameter's tensor: the parameter's own, or with "master.", "exp_avg." or "exp_avg_sq." before it.
std::string tensor_name(Family family, const std::string& parameter);

/// The rank that writes each parameter: contiguous shares of the list, about the same number of elements
/// each.
std::vector<int> owners(const std::vector<ParameterInfo>& infos, int ranks);

/// The list of tensors of a checkpoint that `ranks` ranks write.
std::map<std::string, ManifestTensor> manifest_tensors(const std::vector<ParameterInfo>& infos,
                                                       const Layout& layout, int ranks);
/// The layout of a checkpoint of these parameters, told by whether it has masters; its other types are `exact`.
Layout stored_layout(const Manifest& manifest, const std::vector<ParameterInfo>& infos, FileDtype exact);

/// The opened shards of a checkpoint, tensors found by name.
class ShardSet {
 public:
  struct Found {
    const SafetensorsReader* reader;
    const TensorEntry* entry;
  };
  /// The entry of that name; nullptr where there is none. Adds a line to `problems` for a missing one, and for one that
  /// has not the parameter's shape, which `owner` ("the model has") gives.
  static const TensorEntry* find(const std::map<std::string, Found>& tensors, const std::string& name,
                                 const Shape& shape, const char* owner, std::string& problems);
  /// Opens the shards that hold tensors of the families and checks them against the manifest. Throws
  /// CheckpointError.
  ShardSet(const Path& checkpoint, const Manifest& manifest, const std::vector<Family>& families);

  /// Throws CheckpointError that names every tensor of the families that is missing, unknown to the model or of
  /// another shape, or, when `layout` is given, of another type.
  void check(const std::vector<ParameterInfo>& infos, const std::vector<Family>& families,
             const Layout* layout) const;
  const Found& at(Family family, const std::string& parameter) const;

 private:
  Path checkpoint_;
  std::map<std::string, SafetensorsReader> readers_;
  std::map<std::string, Found> tensors_;
};

}  // namespace deltaport::checkpoint
