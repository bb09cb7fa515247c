// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>

#include "checkpoint/read_tensor.hpp"
#include "checkpoint/shards.hpp"
#include "checkpoint/state_json.hpp"

namespace deltaport {

namespace {

using namespace checkpoint;

const std::vector<Family> all_families = {Family::model, Family::master, Family::exp_avg, Family::exp_avg_sq};

/// A checkpoint that passed its integrity checks.
struct Opened {
  Manifest manifest;
  ParsedState parsed;
  std::unique_ptr<ShardSet> shards;
};

ParsedState read_state(const Path& checkpoint, const Manifest& manifest) {
  const Path path = checkpoint / state_name;
  ParsedState parsed = parse_state(files::read_text(path), path.string());
  DELTAPORT_VALIDATE(parsed.state.step == manifest.step, CheckpointError, path.string(), ": step ",
                     parsed.state.step, ", but ", manifest_name, " has ", manifest.step);
  parsed.state.config_yaml = files::read_text(checkpoint / config_name);
  for (const auto& file : manifest.files)
    if (file.first.rfind("config/", 0) == 0 && file.first != config_name)
      parsed.state.config_files[file.first.substr(7)] = files::read_text(checkpoint / file.first);
  return parsed;
}

/// Checks and opens a checkpoint; every rank hashes its share of the files. Throws on all ranks together.
Opened open(const Communicator& comm, const Path& checkpoint, Verify verify) {
  Opened opened;
  comm.agree([&] { opened.manifest = read_manifest(checkpoint); });
  comm.agree([&] {
    int turn = 0;
    for (const auto& [name, digest] : opened.manifest.files)
      if (turn++ % comm.size() == comm.rank()) verify_file(checkpoint, name, digest, verify);
  });
  comm.agree([&] {
    opened.parsed = read_state(checkpoint, opened.manifest);
    opened.shards = std::make_unique<ShardSet>(checkpoint, opened.manifest, all_families);
  });
  return opened;
}

/// One parameter's slice of a flat buffer.
template <class A>
void read_slice(Runtime& runtime, const ShardSet::Found& found, const ParameterInfo& info,
                const Tensor<A>& flat) {
  read_tensor(runtime, found, Tensor<A>(flat.storage(), flat.data() + info.offset, info.shape));
}

template <class T>
LoadedCheckpoint use(const Communicator& comm, Runtime& runtime, const Path& checkpoint, Opened opened,
                     const ParameterSet<T>& parameters, AdamW<T>& optimizer, const BelongsCheck& check) {
  if (check) check({opened.parsed.state, checkpoint, {}});
  comm.agree([&] {
    // Moments and masters have one type in all precisions; a checkpoint without masters has weights in that
    // type.
    const Layout layout = stored_layout(opened.manifest, parameters.infos(), layout_of<T>().exact);
    opened.shards->check(parameters.infos(), layout.families(), &layout);
    const Family weights = layout.has_masters() ? Family::master : Family::model;
    for (const ParameterInfo& info : parameters.infos()) {
      read_slice(runtime, opened.shards->at(weights, info.name), info, optimizer.masters());
      read_slice(runtime, opened.shards->at(Family::exp_avg, info.name), info, optimizer.exp_avg());
      read_slice(runtime, opened.shards->at(Family::exp_avg_sq, info.name), info, optimizer.exp_avg_sq());
    }
    parameters.round_values(runtime);
    optimizer.set_updates(runtime, opened.parsed.optimizer_updates);
  });
  return {std::move(opened.parsed.state), checkpoint, {}};
}

void warn(const Communicator& comm, std::vector<std::string>& warnings, const std::string& text) {
  warnings.push_back(text);
  if (comm.is_root()) std::cerr << "deltaport: warning: " << text << std::endl;
}

/// What rank 0 sees in the folder, so that all ranks try the same ones in the same order.
std::vector<Path> candidates(const Communicator& comm, const Path& dir) {
  std::string names;
  comm.agree([&] {
    if (!comm.is_root()) return;
    for (const StepFolder& folder : committed_folders(dir)) names += folder.path.filename().string() + "\n";
  });
  names = comm.broadcast(names);
  std::vector<Path> paths;
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = names.find('\n', begin);
    paths.push_back(dir / names.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

void remove_leftovers(const Communicator& comm, const Path& dir, std::int64_t step,
                      std::vector<std::string>& warnings) {
  std::vector<std::string> notes;
  if (comm.is_root()) {
    for (const Path& path : leftovers(dir, step)) {
      try {
        files::remove_tree(path);
        notes.push_back(concat("removed ", path.string(), ", left by an interrupted save"));
      } catch (const std::exception& e) {
        notes.push_back(concat("leftover of an interrupted save stays: ", e.what()));
      }
    }
  }
  for (const std::string& note : notes) warn(comm, warnings, note);
  comm.barrier();
}

}  // namespace

template <class T>
std::optional<LoadedCheckpoint> resume_training_state(const Communicator& comm, Runtime& runtime,
                                                      const std::filesystem::path& dir, Verify verify,
                                                      const ParameterSet<T>& parameters, AdamW<T>& optimizer,
                                                      const BelongsCheck& check) {
  WorkScope scope(runtime, Work::other, "deltaport: load checkpoint");
  const std::vector<Path> paths = candidates(comm, dir);
  if (paths.empty()) return std::nullopt;
  std::vector<std::string> warnings;
  for (const Path& path : paths) {
    std::optional<Opened> opened;
    try {
      opened = open(comm, path, verify);
    } catch (const Error& e) {
      if (e.exit_code() == ExitCode::comm) throw;
      warn(comm, warnings,
           concat("checkpoint ", path.string(), " cannot be used, trying an older one: ", e.what()));
      continue;
    }
    LoadedCheckpoint loaded = use(comm, runtime, path, std::move(*opened), parameters, optimizer, check);
    remove_leftovers(comm, dir, loaded.state.step, warnings);
    loaded.warnings = std::move(warnings);
    return loaded;
  }
  std::string text = concat("no usable checkpoint in ", dir.string(), ":");
  for (const std::string& warning : warnings) text += "\n  " + warning;
  throw CollectiveError(text + "\nmove them away to start again from the beginning", ExitCode::checkpoint,
                        comm.rank());
}

template <class T>
LoadedCheckpoint load_training_state(const Communicator& comm, Runtime& runtime,
                                     const std::filesystem::path& path, Verify verify,
                                     const ParameterSet<T>& parameters, AdamW<T>& optimizer,
                                     const BelongsCheck& check) {
  std::int64_t is_single = 0;
  comm.agree([&] {
    std::error_code ignored;
    DELTAPORT_VALIDATE(std::filesystem::is_directory(path, ignored), CheckpointError, "checkpoint ",
                       path.string(), " does not exist");
    const std::string name = path.filename().string();
    is_single = step_of(name) || std::filesystem::exists(path / manifest_name, ignored) ? 1 : 0;
  });
  if (comm.max(is_single) == 0) {
    auto loaded = resume_training_state(comm, runtime, path, verify, parameters, optimizer, check);
    DELTAPORT_VALIDATE(loaded.has_value(), CheckpointError, path.string(),
                       " is not a checkpoint and holds none");
    return *std::move(loaded);
  }
  WorkScope scope(runtime, Work::other, "deltaport: load checkpoint");
  LoadedCheckpoint loaded = use(comm, runtime, path, open(comm, path, verify), parameters, optimizer, check);
  const Path dir = std::filesystem::absolute(path).lexically_normal().parent_path();
  const std::vector<Path> all = candidates(comm, dir);
  if (step_of(path.filename().string()) && !all.empty() &&
      *step_of(all.front().filename().string()) > loaded.state.step)
    warn(comm, loaded.warnings,
         concat("newer checkpoints up to ", all.front().string(),
                " exist; move them away, or the next automatic resume ", "takes the newest of them"));
  return loaded;
}

TrainingState read_training_state(const std::filesystem::path& checkpoint) {
  return read_state(checkpoint, read_manifest(checkpoint)).state;
}

#define DELTAPORT_INSTANTIATE(T)                                                                   \
  template std::optional<LoadedCheckpoint> resume_training_state<T>(                               \
      const Communicator&, Runtime&, const std::filesystem::path&, Verify, const ParameterSet<T>&, \
      AdamW<T>&, const BelongsCheck&);                                                             \
  template LoadedCheckpoint load_training_state<T>(const Communicator&, Runtime&,                  \
                                                   const std::filesystem::path&, Verify,           \
                                                   const ParameterSet<T>&, AdamW<T>&, const BelongsCheck&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
