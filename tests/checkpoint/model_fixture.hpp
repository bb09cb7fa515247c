// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/checkpoint/training_state.hpp"
#include "deltaport/optim/global_norm.hpp"

namespace deltaport::test {

/// A folder that all ranks share; rank 0 makes and removes it.
class SharedFolder {
 public:
  explicit SharedFolder(const Communicator& comm) : comm_(comm) {
    if (comm.is_root()) own_ = std::make_unique<TempFolder>();
    path_ = comm.broadcast(own_ ? own_->path().string() : std::string());
  }
  ~SharedFolder() { comm_.barrier(); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  Communicator comm_;
  std::unique_ptr<TempFolder> own_;
  std::filesystem::path path_;
};

/// Parameters of a made-up model and their optimizer.
template <class T>
struct Model {
  using A = Accumulate<T>;
  Runtime runtime;
  ParameterSet<T> parameters;
  std::unique_ptr<AdamW<T>> optimizer;

  Model()
      : Model({{"embed.weight", {40, 9}},
               {"layer.0.norm", {9}},
               {"layer.0.w", {9, 30}},
               {"layer.1.scale", {}}}) {}
  explicit Model(const std::vector<std::pair<std::string, Shape>>& list) {
    for (const auto& [name, shape] : list)
      parameters.declare(name, shape, shape.rank() == 2, {Initializer::Kind::normal, 0.1, 0.0},
                         shape.rank() == 0 ? Kept::exact : Kept::rounded);
    parameters.allocate(runtime);
    parameters.initialize(runtime, 11);
    optimizer = std::make_unique<AdamW<T>>(runtime, parameters, OptimizerConfig{}, 1.0);
  }

  /// One optimizer step with made-up gradients that depend on the step alone.
  void step(unsigned number) {
    std::vector<A> flat(static_cast<std::size_t>(parameters.flat_size()), A(0));
    std::mt19937 random(number);
    std::normal_distribution<double> normal;
    for (const ParameterInfo& info : parameters.infos())
      for (std::int64_t i = 0; i < info.shape.size(); ++i)
        flat[static_cast<std::size_t>(info.offset + i)] = static_cast<A>(normal(random));
    copy_from_host(runtime.compute(), parameters.flat_gradients(), flat.data());
    optimizer->step(runtime, 1e-2, global_norm(runtime, parameters.flat_gradients()));
  }
  /// Overwrites masters and moments with arbitrary bits: NaN, infinities and subnormals among them.
  void fill_with_random_bits(unsigned seed) {
    std::mt19937_64 random(seed);
    for (const Tensor<A>& flat : {optimizer->masters(), optimizer->exp_avg(), optimizer->exp_avg_sq()}) {
      std::vector<A> host(static_cast<std::size_t>(flat.size()), A(0));
      for (const ParameterInfo& info : parameters.infos())
        for (std::int64_t i = 0; i < info.shape.size(); ++i) {
          const std::uint64_t bits = random();
          std::memcpy(&host[static_cast<std::size_t>(info.offset + i)], &bits, sizeof(A));
        }
      copy_from_host(runtime.compute(), flat, host.data());
    }
    parameters.round_values(runtime);
  }
  /// All bytes that a resumed run must find again.
  std::string bytes() {
    std::string all;
    const auto append = [&](const auto& flat) {
      const auto host = to_vector(runtime.compute(), flat);
      all.append(reinterpret_cast<const char*>(host.data()), host.size() * sizeof(host[0]));
    };
    append(parameters.flat_values());
    append(optimizer->masters());
    append(optimizer->exp_avg());
    append(optimizer->exp_avg_sq());
    return all + std::to_string(optimizer->updates(runtime));
  }

  SavedCheckpoint save(const Communicator& comm, const std::filesystem::path& dir, std::int64_t step,
                       RetentionPolicy retention = {}) {
    TrainingState state;
    state.step = step;
    state.config_yaml = "version: 1\n";
    return save_training_state(comm, runtime, dir, state, parameters, *optimizer, retention);
  }
  LoadedCheckpoint load(const Communicator& comm, const std::filesystem::path& path,
                        Verify verify = Verify::hashes) {
    return load_training_state(comm, runtime, path, verify, parameters, *optimizer);
  }
  std::optional<LoadedCheckpoint> resume(const Communicator& comm, const std::filesystem::path& dir,
                                         Verify verify = Verify::hashes) {
    return resume_training_state(comm, runtime, dir, verify, parameters, *optimizer);
  }
};

/// Changes one byte in the middle of a file.
inline void flip_byte(const std::filesystem::path& path) {
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(path, bytes);
}

}  // namespace deltaport::test
