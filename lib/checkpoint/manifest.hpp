// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport::checkpoint {

/// Where a tensor is: elements [begin, end) of it, in memory order, in one file.
struct Shard {
  std::string file;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct ManifestTensor {
  FileDtype dtype = FileDtype::f32;
  std::vector<std::int64_t> shape;
  std::vector<Shard> shards;
};

/// Table of contents of a checkpoint folder, its file manifest.json.
struct Manifest {
  static constexpr std::int64_t current_version = 1;

  std::int64_t step = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t tokens = 0;
  std::int64_t world = 1;  ///< ranks that wrote it
  std::uint64_t seed = 0;
  std::string config_xxh3_128;
  std::string data_fingerprint;
  std::map<std::string, FileDigest> files;
  std::map<std::string, ManifestTensor> tensors;
};

std::string to_json(const Manifest& manifest);
/// Throws CheckpointError naming `file` for anything that is not a manifest of a known version.
Manifest parse_manifest(const std::string& text, const std::string& file);

}  // namespace deltaport::checkpoint
