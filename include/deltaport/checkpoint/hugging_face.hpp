// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/checkpoint/safetensors.hpp"
#include "deltaport/checkpoint/training_state.hpp"
#include "deltaport/config/run_config.hpp"

/// Checkpoint folders as transformers writes them for Qwen3.5: config.json, and model.safetensors or several
/// such files with model.safetensors.index.json. Architectures Qwen3_5ForConditionalGeneration (names
/// "model.language_model.*", beside "model.visual.*" and "mtp.*") and Qwen3_5ForCausalLM (names "model.*");
/// both with "lm_head.weight" unless the embedding is tied. Rows of all matrices are stored as deltaport
/// keeps them: in_proj_qkv as q, k, v; q_proj as query, gate of each head. Nothing here needs Kokkos, but for
/// what takes a Runtime; no more than 4 MiB of tensors are in memory at a time.
namespace deltaport {

/// What to do about an output that exists.
enum class Overwrite { refuse, replace };

/// True for a folder with a config.json and safetensors files beside it.
bool is_hugging_face_folder(const std::filesystem::path& folder);

/// The model that a folder's config.json describes; weights are not looked at. Throws Error (exit code 2)
/// that lists every key that is missing or has a value that deltaport cannot honour, with what is allowed.
ModelConfig read_hugging_face_model(const std::filesystem::path& folder);

/// The keys model.* as YAML. Names the preset where all dimensions are those of one.
std::string model_yaml(ModelConfig model);
/// Name of the preset with these dimensions, or "none".
std::string preset_of(const ModelConfig& model);

struct ImportSummary {
  std::filesystem::path checkpoint;  ///< the new folder step-00000000
  ModelConfig model;
  std::int64_t parameters = 0;
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;                      ///< written
  std::map<std::string, std::int64_t> ignored;  ///< tensors that are not the text model's: "vision", "mtp"
  std::vector<std::string> notes;
  std::vector<std::string> warnings;  ///< one for each tensor with values that are NaN or infinite, naming it
};

/// Turns a Hugging Face folder into a checkpoint `output`/step-00000000 with weights, without an optimizer's
/// state, and `output`/model.yaml with the keys of its model. Each tensor keeps its type and bits;
/// config.json, the tokenizer's files and the like are kept in the checkpoint's config/. Values that are no
/// numbers are kept too, and told in the summary. Whole or not there, like every checkpoint. Throws Error
/// (exit code 2) that names every tensor that is unknown, missing or of a wrong shape or type; when `output`
/// holds something and is not to be replaced; CheckpointError when it cannot be written.
ImportSummary import_hugging_face(const std::filesystem::path& folder, const std::filesystem::path& output,
                                  Overwrite overwrite);

enum class ExportMode {
  merge,  ///< the base folder with its text tensors replaced; all else, names and types as in the base
  text    ///< a folder of its own of architecture Qwen3_5ForCausalLM
};

struct ExportOptions {
  std::filesystem::path checkpoint;  ///< a checkpoint, or a folder of them
  std::filesystem::path output;      ///< the folder to make
  ExportMode mode = ExportMode::text;
  /// The Hugging Face folder that the model came from. Needed to merge; gives text mode the tokenizer's files
  /// and what config.json says beyond the model. Empty: where the checkpoint says that it came from, if that
  /// is there.
  std::filesystem::path base = {};
  Overwrite overwrite = Overwrite::refuse;
  std::uint64_t shard_bytes =
      std::uint64_t{5} * 1000 * 1000 * 1000;  ///< text mode: most bytes of tensors in a file
  /// Text mode: type of all but A_log and linear_attn.norm.weight, which are float32 then. Without: an
  /// imported checkpoint's types as they are; else the weights' own type.
  std::optional<FileDtype> dtype = {};
};

struct ExportSummary {
  std::filesystem::path checkpoint;  ///< the one that was read
  std::int64_t tensors = 0;          ///< of the text model
  std::int64_t other_tensors = 0;    ///< taken over from the base
  std::uint64_t bytes = 0;           ///< of all safetensors files
  std::vector<std::string> notes;
};

/// Writes a checkpoint's weights as a Hugging Face folder. The folder appears whole (built as `output`.tmp,
/// flushed, renamed) or not at all; one that is replaced goes last. Throws Error (exit code 2): no or unfit
/// base, a model that Hugging Face's architecture cannot express (GDN2 layers), an `output` that exists;
/// CheckpointError: the checkpoint is damaged, or a file cannot be written.
ExportSummary export_hugging_face(const ExportOptions& options);

/// Fills the parameters of a new run from `folder`: a Hugging Face folder, a checkpoint, or a folder of
/// checkpoints. `model` is the run's: where the folder's differs, in shapes or in what shapes do not show,
/// all differences are named (Error, exit code 2). Values are converted; masters, where there are any, take
/// them exactly. Returns what was read. Fences the compute stream. Not collective.
template <class T>
std::filesystem::path load_initial_weights(Runtime& runtime, const std::filesystem::path& folder,
                                           Verify verify, const ModelConfig& model,
                                           const ParameterSet<T>& parameters);

}  // namespace deltaport
