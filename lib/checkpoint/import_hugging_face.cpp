// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "checkpoint/hugging_face_folder.hpp"
#include "checkpoint/kept_files.hpp"
#include "checkpoint/non_finite.hpp"
#include "checkpoint/publish.hpp"
#include "checkpoint/state_json.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/config/load.hpp"

namespace deltaport {

using namespace checkpoint;
namespace fs = std::filesystem;

namespace {

void check_output(const Path& output, Overwrite overwrite) {
  std::error_code ignored;
  if (!fs::exists(output, ignored)) return;
  if (!fs::is_directory(output, ignored))
    files::raise(FileOrigin::user, concat(output.string(), " exists and is not a folder"));
  for (const StepFolder& folder : committed_folders(output))
    if (folder.step != 0)
      files::raise(FileOrigin::user,
                   concat(output.string(), " holds checkpoints of a run; choose another --output"));
  const bool used = !fs::is_empty(output, ignored);
  if (used && overwrite == Overwrite::refuse)
    files::raise(FileOrigin::user, concat(output.string(),
                                          " holds something already; choose another --output, or "
                                          "--force to replace an earlier import"));
  if (used && committed_folders(output).empty() && !fs::exists(output / latest_name, ignored))
    files::raise(FileOrigin::user,
                 concat(output.string(), " does not hold an earlier import; choose another --output"));
}

/// Precision in which the weights were stored.
Precision precision_of(const ShardSet::Found& embedding) {
  return embedding.entry->dtype == FileDtype::bf16 || embedding.entry->dtype == FileDtype::f16
             ? Precision::bfloat16
             : Precision::float32;
}

TrainingState state_of(const HuggingFaceFolder& source, Precision precision) {
  TrainingState state;
  RunConfig run;
  run.model = source.config().model;
  run.train.precision = precision;
  state.config_yaml = canonical_yaml(run);
  state.config_files = read_kept_files(source.path());
  std::error_code ignored;
  nlohmann::json extra = {{"imported_from", fs::weakly_canonical(source.path(), ignored).string()}};
  extra["tokenizer"] = state.config_files.count("tokenizer.json") ? "tokenizer.json" : "unknown";
  state.extra_json = extra.dump();
  return state;
}

std::map<std::string, std::string> small_files(const TrainingState& state) {
  std::map<std::string, std::string> texts = {{state_name, to_json(state, 0)},
                                              {config_name, state.config_yaml}};
  for (const auto& [name, text] : state.config_files) texts["config/" + name] = text;
  return texts;
}

}  // namespace

ImportSummary import_hugging_face(const std::filesystem::path& folder, const std::filesystem::path& output,
                                  Overwrite overwrite) {
  check_output(output, overwrite);
  const HuggingFaceFolder source(folder);
  const std::vector<ParameterInfo> infos = parameters_of(source.config().model);
  source.check(infos);

  const TrainingState state = state_of(source, precision_of(*source.find(infos.front().name)));
  const std::string file = shard_file_name(Family::model, 0, 1);
  Contents contents;
  contents.texts = small_files(state);
  contents.manifest.seed = state.seed;
  contents.manifest.config_xxh3_128 = files::hash_text(state.config_yaml);
  SafetensorsWriter writer;
  ImportSummary summary;
  std::map<std::string, NonFinite> not_finite;  // filled when the file is written
  for (const ParameterInfo& info : infos) {
    const ShardSet::Found tensor = *source.find(info.name);
    contents.manifest.tensors[info.name] = {
        tensor.entry->dtype, tensor.entry->shape, {{file, 0, info.shape.size()}}};
    NonFinite& found = not_finite[tensor.entry->name];
    writer.add(info.name, tensor.entry->dtype, tensor.entry->shape,
               [tensor, &found](std::uint64_t first_byte, std::uint64_t bytes, void* to) {
                 tensor.reader->read_bytes(*tensor.entry, first_byte, bytes, to);
                 found += count_non_finite(tensor.entry->dtype, static_cast<const std::byte*>(to), bytes);
               });
    summary.parameters += info.shape.size();
  }
  contents.shard_bytes = writer.data_bytes();
  contents.write_shards = [&](const Path& unfinished) {
    return std::map<std::string, FileDigest>{{file, writer.write(unfinished / file)}};
  };
  const SavedCheckpoint saved = publish(Communicator(), output, contents, RetentionPolicy{});
  std::error_code ignored;
  ModelConfig model = source.config().model;
  model.init_from = fs::weakly_canonical(fs::absolute(output, ignored), ignored).string();
  files::write_text(output / "model.yaml",
                    "# The model's part of a run; add data, steps and the like.\n" + model_yaml(model));
  files::sync_directory(output);

  summary.checkpoint = saved.path;
  summary.model = source.config().model;
  summary.tensors = static_cast<std::int64_t>(infos.size());
  summary.bytes = saved.bytes;
  summary.ignored = source.others();
  summary.notes = saved.warnings;
  for (const auto& [name, count] : not_finite)
    if (count.any()) summary.warnings.push_back(concat(name, ": ", count.str()));
  if (source.has_tied_copy())
    summary.notes.emplace_back("lm_head.weight repeats the tied embedding; it is kept once");
  return summary;
}

}  // namespace deltaport
