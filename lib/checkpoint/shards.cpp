// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shards.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

namespace deltaport::checkpoint {

namespace {

std::vector<std::int64_t> extents(const Shape& shape) {
  std::vector<std::int64_t> out;
  for (int i = 0; i < shape.rank(); ++i) out.push_back(shape[i]);
  return out;
}

// Other parts of the text are names, so a prefix is enough to tell the families apart.
bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

bool belongs(const std::string& file, const std::vector<Family>& families) {
  const bool is_model = starts_with(file, "model-");
  return std::any_of(families.begin(), families.end(),
                     [&](Family family) { return (family == Family::model) == is_model; });
}

}  // namespace

std::string shard_file_name(Family family, int rank, int ranks) {
  char text[64];
  std::snprintf(text, sizeof text, "%s-%05d-of-%05d.safetensors", family == Family::model ? "model" : "optim",
                rank + 1, ranks);
  return text;
}

std::string tensor_name(Family family, const std::string& parameter) {
  switch (family) {
    case Family::master:
      return "master." + parameter;
    case Family::exp_avg:
      return "exp_avg." + parameter;
    case Family::exp_avg_sq:
      return "exp_avg_sq." + parameter;
    default:
      return parameter;
  }
}

std::vector<Family> Layout::families() const {
  if (has_masters()) return {Family::model, Family::master, Family::exp_avg, Family::exp_avg_sq};
  return {Family::model, Family::exp_avg, Family::exp_avg_sq};
}

std::uint64_t Layout::bytes(const std::vector<ParameterInfo>& infos) const {
  std::uint64_t total = 0;
  for (const Family family : families())
    for (const ParameterInfo& info : infos)
      total += static_cast<std::uint64_t>(info.shape.size()) *
               static_cast<std::uint64_t>(bits_of(dtype(family, info)) / 8);
  return total;
}

std::vector<int> owners(const std::vector<ParameterInfo>& infos, int ranks) {
  std::int64_t total = 0;
  for (const ParameterInfo& info : infos) total += info.shape.size();
  std::vector<int> owner;
  std::int64_t before = 0;
  for (const ParameterInfo& info : infos) {
    const double middle = static_cast<double>(before) + 0.5 * static_cast<double>(info.shape.size());
    const double share = middle / static_cast<double>(std::max<std::int64_t>(total, 1));
    owner.push_back(std::min(ranks - 1, static_cast<int>(share * ranks)));
    before += info.shape.size();
  }
  return owner;
}

std::map<std::string, ManifestTensor> manifest_tensors(const std::vector<ParameterInfo>& infos,
                                                       const Layout& layout, int ranks) {
  const std::vector<int> owner = owners(infos, ranks);
  std::map<std::string, ManifestTensor> tensors;
  for (std::size_t i = 0; i < infos.size(); ++i)
    for (const Family family : layout.families()) {
      const Shard shard{shard_file_name(family, owner[i], ranks), 0, infos[i].shape.size()};
      tensors[tensor_name(family, infos[i].name)] =
          ManifestTensor{layout.dtype(family, infos[i]), extents(infos[i].shape), {shard}};
    }
  return tensors;
}

Layout stored_layout(const Manifest& manifest, const std::vector<ParameterInfo>& infos, FileDtype exact) {
  const bool has_masters = std::any_of(infos.begin(), infos.end(), [&](const ParameterInfo& info) {
    return manifest.tensors.count(tensor_name(Family::master, info.name)) > 0;
  });
  return {has_masters ? FileDtype::bf16 : exact, exact};
}

ShardSet::ShardSet(const Path& checkpoint, const Manifest& manifest, const std::vector<Family>& families)
    : checkpoint_(checkpoint) {
  for (const auto& [name, digest] : manifest.files)
    if (Path(name).extension() == ".safetensors" && belongs(name, families))
      readers_.emplace(name, SafetensorsReader(checkpoint / name));
  for (const auto& [file, reader] : readers_)
    for (const TensorEntry& entry : reader.tensors()) {
      DELTAPORT_VALIDATE(manifest.tensors.count(entry.name), CheckpointError, reader.path().string(),
                         ": tensor \"", entry.name, "\" is not listed in ", manifest_name);
      DELTAPORT_VALIDATE(tensors_.emplace(entry.name, Found{&reader, &entry}).second, CheckpointError,
                         reader.path().string(), ": tensor \"", entry.name, "\" is in another file too");
    }
  for (const auto& [name, tensor] : manifest.tensors) {
    const bool is_whole = tensor.shards.size() == 1 && tensor.shards[0].begin == 0;
    DELTAPORT_VALIDATE(is_whole, CheckpointError, checkpoint.string(), ": tensor \"", name,
                       "\" is split, which this release cannot read");
    if (!belongs(tensor.shards[0].file, families)) continue;
    const auto found = tensors_.find(name);
    DELTAPORT_VALIDATE(found != tensors_.end() && found->second.entry->shape == tensor.shape &&
                           found->second.entry->dtype == tensor.dtype,
                       CheckpointError, (checkpoint / tensor.shards[0].file).string(), ": tensor \"", name,
                       "\" is not there as ", manifest_name, " says");
  }
}

const TensorEntry* ShardSet::find(const std::map<std::string, Found>& tensors, const std::string& name,
                                  const Shape& shape, const char* owner, std::string& problems) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    problems += concat("\n  missing: ", name, " ", shape.str());
    return nullptr;
  }
  const TensorEntry* const entry = found->second.entry;
  if (entry->shape != extents(shape))
    problems += concat("\n  shape: ", name, " is ", entry->shape_string(), ", ", owner, " ", shape.str());
  return entry;
}

void ShardSet::check(const std::vector<ParameterInfo>& infos, const std::vector<Family>& families,
                     const Layout* layout) const {
  std::string problems;
  std::set<std::string> expected;
  for (const Family family : families)
    for (const ParameterInfo& info : infos) {
      const std::string name = tensor_name(family, info.name);
      expected.insert(name);
      const TensorEntry* const entry = find(tensors_, name, info.shape, "the model has", problems);
      if (entry && layout && entry->dtype != layout->dtype(family, info))
        problems += concat("\n  dtype: ", name, " is ", name_of(entry->dtype), ", the model has ",
                           name_of(layout->dtype(family, info)));
    }
  for (const auto& [name, found] : tensors_)
    if (!expected.count(name)) problems += concat("\n  unknown: ", name, " ", found.entry->shape_string());
  DELTAPORT_VALIDATE(problems.empty(), CheckpointError, "checkpoint ", checkpoint_.string(),
                     " does not belong to this model:", problems,
                     "\nuse the model configuration it was saved with");
}

const ShardSet::Found& ShardSet::at(Family family, const std::string& parameter) const {
  return tensors_.at(tensor_name(family, parameter));
}

}  // namespace deltaport::checkpoint
