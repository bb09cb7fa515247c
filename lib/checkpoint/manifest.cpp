// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <nlohmann/json.hpp>

#include "deltaport/core/error.hpp"

namespace deltaport::checkpoint {

namespace {

using nlohmann::json;
constexpr const char* format_name = "deltaport checkpoint";

json tensor_json(const ManifestTensor& tensor) {
  json shards = json::array();
  for (const Shard& shard : tensor.shards)
    shards.push_back({{"file", shard.file}, {"begin", shard.begin}, {"end", shard.end}});
  return {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"shards", shards}};
}

ManifestTensor parse_tensor(const std::string& name, const json& j) {
  ManifestTensor tensor;
  const auto dtype = parse_file_dtype(j.at("dtype").get<std::string>());
  DELTAPORT_VALIDATE(dtype.has_value(), CheckpointError, "tensor \"", name, "\" has unknown dtype ",
                     j.at("dtype").dump());
  tensor.dtype = *dtype;
  tensor.shape = j.at("shape").get<std::vector<std::int64_t>>();
  for (const json& shard : j.at("shards"))
    tensor.shards.push_back({shard.at("file").get<std::string>(), shard.at("begin").get<std::int64_t>(),
                             shard.at("end").get<std::int64_t>()});
  return tensor;
}

// File names come from outside: they must not lead out of the folder.
void check_file_name(const std::string& name) {
  const bool inside = !name.empty() && name.front() != '/' && name.find("..") == std::string::npos;
  DELTAPORT_VALIDATE(inside, CheckpointError, "file name \"", name, "\" leads out of the checkpoint");
}

Manifest read(const json& j) {
  DELTAPORT_VALIDATE(j.at("format") == format_name, CheckpointError, "\"format\" is ", j.at("format").dump(),
                     ", not \"", format_name, "\"");
  const auto version = j.at("version").get<std::int64_t>();
  DELTAPORT_VALIDATE(version == Manifest::current_version, CheckpointError, "version ", version,
                     " was written by another release; this one reads version ", Manifest::current_version);
  Manifest m;
  m.step = j.at("step").get<std::int64_t>();
  m.consumed_samples = j.at("consumed_samples").get<std::int64_t>();
  m.tokens = j.at("tokens").get<std::int64_t>();
  m.world = j.at("world").get<std::int64_t>();
  m.seed = j.at("rng").at("seed").get<std::uint64_t>();
  m.config_xxh3_128 = j.at("config_xxh3_128").get<std::string>();
  m.data_fingerprint = j.at("data_fingerprint").get<std::string>();
  for (const json& file : j.at("files")) {
    const auto name = file.at("name").get<std::string>();
    check_file_name(name);
    m.files[name] = {file.at("bytes").get<std::uint64_t>(), file.at("xxh3_128").get<std::string>()};
  }
  for (const auto& [name, tensor] : j.at("tensors").items()) m.tensors[name] = parse_tensor(name, tensor);
  return m;
}

}  // namespace

std::string to_json(const Manifest& m) {
  json files = json::array();
  for (const auto& [name, digest] : m.files)
    files.push_back({{"name", name}, {"bytes", digest.bytes}, {"xxh3_128", digest.xxh3_128}});
  json tensors = json::object();
  for (const auto& [name, tensor] : m.tensors) tensors[name] = tensor_json(tensor);
  // Every random draw is keyed by (seed, step, tensor, element), so the seed is the whole state of the
  // generator.
  const json j = {{"format", format_name},
                  {"version", Manifest::current_version},
                  {"step", m.step},
                  {"consumed_samples", m.consumed_samples},
                  {"tokens", m.tokens},
                  {"world", m.world},
                  {"rng", {{"kind", "philox4x32-10"}, {"seed", m.seed}}},
                  {"config_xxh3_128", m.config_xxh3_128},
                  {"data_fingerprint", m.data_fingerprint},
                  {"files", files},
                  {"tensors", tensors}};
  return j.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& e) {
    throw CheckpointError(concat(file, ": damaged: ", e.what()));
  } catch (const CheckpointError& e) {
    throw CheckpointError(concat(file, ": ", e.what()));
  }
}

}  // namespace deltaport::checkpoint
