// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/comm/communicator.hpp"
#include "deltaport/core/runtime.hpp"
#include "deltaport/model/parameters.hpp"
#include "deltaport/optim/adamw.hpp"

namespace deltaport {

/// Everything a run needs to go on, besides the tensors. The trainer fills it and gets it back unchanged,
/// doubles to the last bit.
struct TrainingState {
  std::int64_t step = 0;  ///< optimizer steps done; names the checkpoint's folder
  std::int64_t consumed_samples = 0;
  std::int64_t tokens = 0;
  std::uint64_t seed = 0;
  std::string fingerprint;  ///< of the data
  double loss = 0.0;
  double loss_ema = 0.0;
  double lr = 0.0;
  double wall_seconds = 0.0;
  std::string config_yaml;                          ///< canonical text, kept as config/run.yaml
  std::map<std::string, std::string> config_files;  ///< original files by plain name, kept in config/
  std::string extra_json = "{}";                    ///< an object of the caller's own
};

/// Which checkpoints stay when a new one has been committed.
struct RetentionPolicy {
  std::int64_t keep_last = 2;         ///< newest whole checkpoints that stay; fewer than 2 count as 2
  std::filesystem::path loaded_from;  ///< never removed; empty: none
};

/// How a checkpoint is checked before it is used.
enum class Verify {
  sizes,  ///< every file is there with its size
  hashes  ///< and its content has the recorded XXH3-128
};

struct SavedCheckpoint {
  std::filesystem::path path;
  std::uint64_t bytes = 0;            ///< of all files
  std::vector<std::string> warnings;  ///< what could not be cleaned up; on rank 0
};

struct LoadedCheckpoint {
  TrainingState state;
  std::filesystem::path path;
  std::vector<std::string> warnings;  ///< checkpoints passed over, leftovers removed; also printed on rank 0
};

/// Writes `dir`/step-00001000 (for step 1000) with every rank writing its share of the tensors, so that a
/// process or machine that dies at any moment leaves this checkpoint whole or not there at all, and the
/// earlier ones untouched:
///
///   manifest.json                          files with sizes and hashes, tensors with types, shapes and files
///   model-00001-of-0000N.safetensors       parameters by name, in T (exact ones in Accumulate<T>)
///   optim-00001-of-0000N.safetensors       exp_avg.<name> and exp_avg_sq.<name>; where T is bfloat16 also the
///                                          float32 master.<name>
///   state.json, config/, COMMIT            COMMIT (empty) is written last
///
/// Afterwards `dir`/latest names it and older ones are removed as `retention` says. Collective; all ranks
/// hold the same parameters. Copies through a buffer of 4 MiB and fences the compute stream. When any rank
/// fails, all throw the same CollectiveError (exit code 5) and the unfinished folder is removed. Needs free
/// space of 1.1 times the checkpoint. Saving the step that was loaded from does nothing; another checkpoint
/// of the same step is replaced.
template <class T>
SavedCheckpoint save_training_state(const Communicator& comm, Runtime& runtime,
                                    const std::filesystem::path& dir, const TrainingState& state,
                                    const ParameterSet<T>& parameters, const AdamW<T>& optimizer,
                                    const RetentionPolicy& retention);

/// Whether a checkpoint belongs to this run: throws when not. Called on every rank before tensors are read, so that a
/// difference of the configuration is told as such.
using BelongsCheck = std::function<void(const LoadedCheckpoint&)>;

/// Loads one checkpoint folder, or the newest usable one when `path` is a folder of checkpoints. Works for
/// any number of ranks, whatever number saved it. Collective. All ranks throw the same error (exit code 5)
/// when there is none, when it is damaged, and when its tensors are not those of the model: every missing,
/// unknown or differing one is named. Weights come from the masters, of which the checkpoint's own bfloat16
/// weights are the rounded values, so a checkpoint in float32 can be loaded in bfloat16 and the other way
/// round; the check decides whether it may.
template <class T>
LoadedCheckpoint load_training_state(const Communicator& comm, Runtime& runtime,
                                     const std::filesystem::path& path, Verify verify,
                                     const ParameterSet<T>& parameters, AdamW<T>& optimizer,
                                     const BelongsCheck& check = {});

/// Loads the newest usable checkpoint in `dir`: damaged ones are passed over with a warning. Nothing when
/// `dir` holds no checkpoint at all; an error when it holds only damaged ones, so that a run never silently
/// starts again. Removes what interrupted saves left behind. Collective; otherwise as load_training_state.
template <class T>
std::optional<LoadedCheckpoint> resume_training_state(const Communicator& comm, Runtime& runtime,
                                                      const std::filesystem::path& dir, Verify verify,
                                                      const ParameterSet<T>& parameters, AdamW<T>& optimizer,
                                                      const BelongsCheck& check = {});

/// The newest committed checkpoint in `dir` whose files have their sizes. Not collective.
std::optional<std::filesystem::path> find_latest(const std::filesystem::path& dir);

/// The folder itself when it is a checkpoint, else the newest usable checkpoint in it. Throws CheckpointError
/// when there is none. Not collective.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

/// State and configuration of a checkpoint folder, tensors left out. Not collective.
TrainingState read_training_state(const std::filesystem::path& checkpoint);

/// Loads the parameters alone, for evaluation and generation; other float types are converted (masters, where
/// there are any, take the values as the file has them). `path` as in resolve_checkpoint. Returns the folder
/// used. Not collective.
template <class T>
std::filesystem::path load_weights(Runtime& runtime, const std::filesystem::path& path, Verify verify,
                                   const ParameterSet<T>& parameters);

}  // namespace deltaport
