// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/export_folder.hpp"
#include "checkpoint/hugging_face_folder.hpp"
#include "checkpoint/kept_files.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/config/load.hpp"

namespace deltaport {

using namespace checkpoint;
namespace fs = std::filesystem;

namespace {

/// The checkpoint whose weights are written.
struct Source {
  Path path;
  Manifest manifest;
  TrainingState state;
  ModelConfig model;
  std::vector<ParameterInfo> infos;
  std::unique_ptr<ShardSet> shards;

  /// A checkpoint of weights alone, as import makes it.
  bool imported() const {
    return manifest.tensors.count(tensor_name(Family::exp_avg, infos.front().name)) == 0;
  }
  const ShardSet::Found& at(const std::string& parameter) const {
    return shards->at(Family::model, parameter);
  }
};

Source open_source(const Path& path) {
  Source source;
  source.path = resolve_checkpoint(path);
  source.manifest = read_manifest(source.path);
  for (const auto& [name, digest] : source.manifest.files)
    verify_file(source.path, name, digest, Verify::sizes);
  source.state = read_training_state(source.path);
  source.model = parse_canonical(source.state.config_yaml, source.path.string()).model;
  for (std::int64_t i = 0; i < source.model.num_hidden_layers; ++i)
    if (source.model.layer_type(i) == LayerType::gdn2)
      files::raise(FileOrigin::user,
                   concat(source.path.string(), ": layer ", i,
                          " is gdn2, which no architecture of Hugging Face's computes; only gdn and "
                          "attention layers can be exported"));
  source.infos = parameters_of(source.model);
  for (const auto& [name, digest] : source.manifest.files)
    if (name.rfind("model-", 0) == 0) verify_file(source.path, name, digest, Verify::hashes);
  source.shards =
      std::make_unique<ShardSet>(source.path, source.manifest, std::vector<Family>{Family::model});
  source.shards->check(source.infos, {Family::model}, nullptr);
  return source;
}

/// The Hugging Face folder that was named, or where the checkpoint says that it came from.
std::optional<Path> base_of(const ExportOptions& options, const Source& source) {
  if (!options.base.empty()) return options.base;
  std::vector<std::string> candidates;
  const auto extra = nlohmann::json::parse(source.state.extra_json, nullptr, false);
  if (extra.is_object() && extra.contains("imported_from"))
    candidates.push_back(extra.value("imported_from", ""));
  const RunConfig config = parse_canonical(source.state.config_yaml, source.path.string());
  candidates.push_back(config.model.init_from);
  for (const std::string& candidate : candidates)
    if (is_hugging_face_folder(candidate)) return Path(candidate);
  return std::nullopt;
}

void check_base(const Source& source, const Path& path, const ModelConfig& base) {
  const auto differences = model_differences(source.model, "the checkpoint", base, path.string());
  if (differences.empty()) return;
  std::string text = concat(path.string(), " is not the base of ", source.path.string(), ":");
  for (const std::string& difference : differences) text += "\n  " + difference;
  files::raise(FileOrigin::user, text);
}

/// What import kept: in the checkpoint itself, or in the one that the run began from.
std::map<std::string, std::string> kept_files(const Source& source) {
  std::map<std::string, std::string> kept = kept_among(source.state.config_files);
  if (!kept.empty()) return kept;
  const std::string from = parse_canonical(source.state.config_yaml, source.path.string()).model.init_from;
  try {
    if (from != "none") kept = kept_among(read_training_state(resolve_checkpoint(from)).config_files);
  } catch (const Error&) {  // it need not be there any more
  }
  return kept;
}

// ---- merge

/// One file of the base with its header and every tensor that is not the text model's as they are.
std::uint64_t merge_file(const HuggingFaceFolder& base, const SafetensorsReader& reader, const Source& source,
                         const Path& to, ExportSummary& summary) {
  files::OutputFile out(to);
  copy_header(reader.path(), out);
  for (const TensorEntry& entry : reader.tensors()) {
    const auto parameter = base.parameter_of(entry.name);
    ++(parameter ? summary.tensors : summary.other_tensors);
    const ShardSet::Found from = parameter ? source.at(*parameter) : ShardSet::Found{&reader, &entry};
    write_tensor(from, entry.dtype, entry.end - entry.begin, out);
  }
  return out.finish().bytes;
}

void write_merged(const Source& source, const Path& base_path, const Path& folder, ExportSummary& summary) {
  const HuggingFaceFolder base(base_path);
  check_base(source, base_path, base.config().model);
  base.check(source.infos);
  std::set<std::string> written;
  for (const auto& [name, reader] : base.files()) {
    summary.bytes += merge_file(base, reader, source, folder / name, summary);
    written.insert(name);
  }
  for (const Path& file : other_files(base_path, written, summary.notes))
    copy_whole_file(file, folder / file.filename());
}

// ---- text

/// Type of one tensor in a folder of its own.
FileDtype text_dtype(const ExportOptions& options, const Source& source, const ParameterInfo& info) {
  const FileDtype stored = source.at(info.name).entry->dtype;
  if (source.imported() && !options.dtype) return stored;
  const bool exact = info.name.ends_with(".A_log") || info.name.ends_with(".linear_attn.norm.weight");
  if (exact) return FileDtype::f32;
  // dt_bias is float32 here, and of the other weights' type there.
  return options.dtype ? *options.dtype : source.at(source.infos.front().name).entry->dtype;
}

struct TextFile {
  SafetensorsWriter writer;
  std::vector<std::string> names;
};

/// Tensors in the model's order, cut into files of at most the asked size.
std::vector<TextFile> text_files(const ExportOptions& options, const Source& source) {
  std::vector<TextFile> list(1);
  for (const ParameterInfo& info : source.infos) {
    const FileDtype dtype = text_dtype(options, source, info);
    const auto bytes =
        static_cast<std::uint64_t>(info.shape.size()) * static_cast<std::uint64_t>(bits_of(dtype) / 8);
    if (!list.back().names.empty() && list.back().writer.data_bytes() + bytes > options.shard_bytes)
      list.emplace_back();
    const ShardSet::Found found = source.at(info.name);
    list.back().writer.add(info.name, dtype, found.entry->shape,
                           [found, dtype](std::uint64_t first_byte, std::uint64_t count, void* to) {
                             read_as(found, dtype, first_byte, count, to);
                           });
    list.back().names.push_back(info.name);
  }
  return list;
}

void write_index(const std::vector<TextFile>& list, const Path& folder) {
  nlohmann::json map = nlohmann::json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    total += list[i].writer.data_bytes();
    for (const std::string& name : list[i].names) map[name] = weight_file_name(i, list.size());
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  files::write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

void write_text_model(const ExportOptions& options, const Source& source, const std::optional<Path>& base,
                      const Path& folder, ExportSummary& summary) {
  std::map<std::string, std::string> kept = base ? read_kept_files(*base) : kept_files(source);
  std::optional<HuggingFaceConfig> config;
  if (const auto own = kept.find("config.json"); own != kept.end()) {
    config = parse_hugging_face_config(own->second, base ? (*base / "config.json").string() : "config.json");
    if (base) check_base(source, *base, config->model);
  }
  const std::vector<TextFile> list = text_files(options, source);
  for (std::size_t i = 0; i < list.size(); ++i)
    summary.bytes += list[i].writer.write(folder / weight_file_name(i, list.size())).bytes;
  if (list.size() > 1) write_index(list, folder);
  const FileDtype dtype = text_dtype(options, source, source.infos.front());
  kept["config.json"] = causal_lm_config(source.model, dtype, config ? &*config : nullptr);
  for (const auto& [name, text] : kept) files::write_text(folder / name, text);
  summary.tensors = static_cast<std::int64_t>(source.infos.size());
  if (!kept.count("tokenizer.json"))
    summary.notes.emplace_back(
        "no tokenizer.json is there to be written beside the model; --base FOLDER takes one over");
}

}  // namespace

ExportSummary export_hugging_face(const ExportOptions& options) {
  check_export_output(options.output, options.overwrite);
  const Source source = open_source(options.checkpoint);
  const std::optional<Path> base = base_of(options, source);
  if (options.mode == ExportMode::merge && !base)
    files::raise(FileOrigin::user,
                 "--mode merge needs --base FOLDER, the Hugging Face checkpoint that the text weights "
                 "are put into");
  if (options.mode == ExportMode::merge && options.dtype)
    files::raise(FileOrigin::user,
                 "--dtype does not go with --mode merge: every tensor keeps the base's type");
  for (const Path& read : {source.path, base.value_or(Path())}) check_apart(options.output, read);

  ExportSummary summary;
  summary.checkpoint = source.path;
  write_folder(options.output, [&](const Path& folder) {
    if (options.mode == ExportMode::merge)
      write_merged(source, *base, folder, summary);
    else
      write_text_model(options, source, base, folder, summary);
  });
  return summary;
}

}  // namespace deltaport
