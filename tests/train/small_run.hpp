// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "deltaport/config/load.hpp"
#include "deltaport/core/rng.hpp"
#include "deltaport/data/token_writer.hpp"

namespace deltaport::testing {

/// A folder of its own, gone with the object. `name` must be the same on all ranks that share it.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("deltaport-" + name)) {}
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& file) const { return (path_ / file).string(); }
  std::string str() const { return path_.string(); }
  void create() const {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }

 private:
  std::filesystem::path path_;
};

/// Documents of 1 to 120 bytes in which each byte depends on the one before: something to learn.
inline void write_tokens(const std::string& prefix, std::int64_t documents) {
  TokenWriter writer(prefix, TokenDtype::u16, Existing::replace);
  for (std::int64_t d = 0; d < documents; ++d) {
    const auto key = static_cast<std::uint64_t>(d);
    const int length = 1 + static_cast<int>(120 * uniform(1, key, 0));
    std::vector<std::int32_t> ids = {97};
    for (int i = 1; i < length; ++i)
      ids.push_back(
          97 + (ids.back() * 5 + 3 + (uniform(2, key, static_cast<std::uint64_t>(i)) < 0.1 ? 1 : 0)) % 26);
    ids.push_back(256);
    writer.append(ids);
    writer.end_document();
  }
  writer.publish(nullptr);
}

/// A small run of every kind of layer on data in `folder`; `overrides` as on the command line.
inline LoadedConfig small_config(const Folder& folder, std::vector<std::string> overrides = {}) {
  LoadRequest request;
  request.files = {folder / "run.yaml"};
  request.overrides = std::move(overrides);
  request.environment = std::map<std::string, std::string>{};
  return load_config(request);
}

inline void write_small_run(const Folder& folder) {
  folder.create();
  write_tokens(folder / "train", 300);
  write_tokens(folder / "valid", 20);
  std::ofstream(folder / "run.yaml") << "version: 1\nrun: {name: small, dir: '" << folder / "run"
                                     << "'}\n"
                                     << R"(model:
  vocab_size: 257
  hidden_size: 32
  num_hidden_layers: 3
  intermediate_size: 64
  layer_pattern: [gdn, gdn2, attention]
  linear: {num_key_heads: 2, num_value_heads: 4, key_head_dim: 16, value_head_dim: 16, chunk_size: 16}
  attention: {num_heads: 2, num_kv_heads: 1, head_dim: 16, partial_rotary_factor: 0.5}
data:
)"
                                     << "  train: [{path: '" << folder / "train"
                                     << "'}]\n  valid: [{path: '" << folder / "valid"
                                     << "'}]\n"
                                     << R"(  seq_len: 32
train: {steps: 20, global_batch_tokens: 384, micro_batch: 1}
optimizer: {lr: 1.0e-2}
schedule: {warmup: 3}
eval: {batches: 5}
logging: {progress: false}
)";
}

}  // namespace deltaport::testing
