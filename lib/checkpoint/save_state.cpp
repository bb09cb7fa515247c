// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "checkpoint/publish.hpp"
#include "checkpoint/shards.hpp"
#include "checkpoint/state_json.hpp"

namespace deltaport {

namespace {

using namespace checkpoint;

/// Adds one parameter's tensor; copied to the host piece by piece while the file is written.
template <class T>
void add_tensor(SafetensorsWriter& writer, Runtime& runtime, Family family, const ParameterInfo& info,
                const Tensor<T>& tensor) {
  std::vector<std::int64_t> shape;
  for (int i = 0; i < info.shape.rank(); ++i) shape.push_back(info.shape[i]);
  const Tensor<T> flat = tensor.reshape(Shape{info.shape.size()});
  writer.add(tensor_name(family, info.name), layout_of<T>().rounded, shape,
             [&runtime, flat](std::uint64_t first_byte, std::uint64_t bytes, void* to) {
               const auto first = static_cast<std::int64_t>(first_byte / sizeof(T));
               const auto count = static_cast<std::int64_t>(bytes / sizeof(T));
               copy_to_host(runtime.compute(), static_cast<T*>(to), flat.rows(first, first + count));
             });
}

template <class A>
Tensor<A> part_of(const Tensor<A>& flat, const ParameterInfo& info) {
  return Tensor<A>(flat.storage(), flat.data() + info.offset, info.shape);
}

template <class T>
std::map<std::string, FileDigest> write_shards(const Communicator& comm, Runtime& runtime, const Path& folder,
                                               const ParameterSet<T>& parameters, const AdamW<T>& optimizer) {
  SafetensorsWriter model;
  SafetensorsWriter optim;
  const std::vector<int> owner = owners(parameters.infos(), comm.size());
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] != comm.rank()) continue;
    const ParameterInfo& info = parameters.infos()[i];
    const int index = static_cast<int>(i);
    if (info.kept == Kept::exact)
      add_tensor(model, runtime, Family::model, info, parameters.master(index));
    else
      add_tensor(model, runtime, Family::model, info, parameters.value(index));
    if (layout_of<T>().has_masters())
      add_tensor(optim, runtime, Family::master, info, parameters.master(index));
    add_tensor(optim, runtime, Family::exp_avg, info, part_of(optimizer.exp_avg(), info));
    add_tensor(optim, runtime, Family::exp_avg_sq, info, part_of(optimizer.exp_avg_sq(), info));
  }
  std::map<std::string, FileDigest> digests;
  const std::string model_file = shard_file_name(Family::model, comm.rank(), comm.size());
  const std::string optim_file = shard_file_name(Family::exp_avg, comm.rank(), comm.size());
  digests[model_file] = model.write(folder / model_file);
  digests[optim_file] = optim.write(folder / optim_file);
  return digests;
}

std::map<std::string, std::string> small_files(const TrainingState& state, std::int64_t updates) {
  std::map<std::string, std::string> texts;
  texts[state_name] = to_json(state, updates);
  texts[config_name] = state.config_yaml;
  for (const auto& [name, text] : state.config_files) {
    const bool is_plain = !name.empty() && name.find('/') == std::string::npos && name != "." &&
                          name != ".." && name.find_first_of(" \n\t") == std::string::npos;
    DELTAPORT_VALIDATE(is_plain, CheckpointError, "configuration file \"", name, "\" needs a plain name");
    DELTAPORT_VALIDATE(texts.emplace("config/" + name, text).second, CheckpointError,
                       "configuration file name \"", name, "\" is taken");
  }
  return texts;
}

template <class T>
Manifest describe(const Communicator& comm, const TrainingState& state, const ParameterSet<T>& parameters) {
  Manifest manifest;
  manifest.step = state.step;
  manifest.consumed_samples = state.consumed_samples;
  manifest.tokens = state.tokens;
  manifest.world = comm.size();
  manifest.seed = state.seed;
  manifest.config_xxh3_128 = files::hash_text(state.config_yaml);
  manifest.data_fingerprint = state.fingerprint;
  manifest.tensors = manifest_tensors(parameters.infos(), layout_of<T>(), comm.size());
  return manifest;
}

}  // namespace

template <class T>
SavedCheckpoint save_training_state(const Communicator& comm, Runtime& runtime,
                                    const std::filesystem::path& dir, const TrainingState& state,
                                    const ParameterSet<T>& parameters, const AdamW<T>& optimizer,
                                    const RetentionPolicy& retention) {
  WorkScope scope(runtime, Work::other, "deltaport: save checkpoint");
  Contents contents;
  comm.agree([&] {
    contents.manifest = describe(comm, state, parameters);
    contents.texts = small_files(state, optimizer.updates(runtime));
  });
  contents.shard_bytes = layout_of<T>().bytes(parameters.infos());
  contents.write_shards = [&](const Path& folder) {
    return write_shards(comm, runtime, folder, parameters, optimizer);
  };
  return publish(comm, dir, contents, retention);
}

#define DELTAPORT_INSTANTIATE(T)                                                         \
  template SavedCheckpoint save_training_state<T>(                                       \
      const Communicator&, Runtime&, const std::filesystem::path&, const TrainingState&, \
      const ParameterSet<T>&, const AdamW<T>&, const RetentionPolicy&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
