// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/hugging_face_folder.hpp"
#include "checkpoint/read_tensor.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/config/load.hpp"

namespace deltaport {

using namespace checkpoint;

namespace {

void check_model(const Path& folder, const ModelConfig& own, const ModelConfig& run) {
  const auto differences = model_differences(own, "the folder", run, "the run");
  if (differences.empty()) return;
  std::string text = concat("model.init_from ", folder.string(), " holds another model:");
  for (const std::string& difference : differences) text += "\n  " + difference;
  throw ConfigError(text + "\nits keys are:\n" + model_yaml(own));
}

}  // namespace

template <class T>
std::filesystem::path load_weights(Runtime& runtime, const std::filesystem::path& path, Verify verify,
                                   const ParameterSet<T>& parameters) {
  const Path checkpoint = resolve_checkpoint(path);
  const Manifest manifest = read_manifest(checkpoint);
  for (const auto& [name, digest] : manifest.files)
    if (name.rfind("model-", 0) == 0) verify_file(checkpoint, name, digest, verify);
  const ShardSet shards(checkpoint, manifest, {Family::model});
  shards.check(parameters.infos(), {Family::model}, nullptr);
  read_parameters(runtime, parameters, [&](const std::string& name) -> const ShardSet::Found& {
    return shards.at(Family::model, name);
  });
  return checkpoint;
}

template <class T>
std::filesystem::path load_initial_weights(Runtime& runtime, const std::filesystem::path& folder,
                                           Verify verify, const ModelConfig& model,
                                           const ParameterSet<T>& parameters) {
  WorkScope scope(runtime, Work::other, "deltaport: load initial weights");
  std::error_code ignored;
  if (is_hugging_face_folder(folder)) {
    const HuggingFaceFolder source(folder);
    check_model(folder, source.config().model, model);
    source.check(parameters.infos());
    read_parameters(runtime, parameters,
                    [&](const std::string& name) -> const ShardSet::Found& { return *source.find(name); });
    return folder;
  }
  DELTAPORT_VALIDATE(std::filesystem::is_directory(folder, ignored), ConfigError, "model.init_from ",
                     folder.string(), " is not a folder");
  const Path inside = folder / "checkpoints";
  const Path checkpoint =
      resolve_checkpoint(std::filesystem::is_directory(inside, ignored) ? inside : folder);
  const TrainingState state = read_training_state(checkpoint);
  check_model(checkpoint, parse_canonical(state.config_yaml, checkpoint.string()).model, model);
  return load_weights(runtime, checkpoint, verify, parameters);
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template std::filesystem::path load_weights<T>(Runtime&, const std::filesystem::path&, Verify,         \
                                                 const ParameterSet<T>&);                                \
  template std::filesystem::path load_initial_weights<T>(Runtime&, const std::filesystem::path&, Verify, \
                                                         const ModelConfig&, const ParameterSet<T>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
