// SPDX-License-Identifier: Apache-2.0
#include "train/rank_agreement.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "config/field.hpp"
#include "config/printing.hpp"
#include "data/checksum.hpp"
#include "deltaport/train/trainer.hpp"

namespace deltaport::train {
namespace {

bool all_the_same(const Communicator& communicator, const std::string& text) {
  const auto hash = static_cast<std::int64_t>(Checksum::of(text).low);
  std::int64_t ends[] = {hash, ~hash};  // the greatest complement is that of the least
  communicator.all_reduce_max(ends, 2);
  return ends[0] == ~ends[1];
}

std::string value_of(const config::Field& field, const RunConfig& c) {
  if (field.path == "checkpoint.dir") return config::yaml_text(checkpoint_folder(c));
  config::Value value = field.binding.get(c);
  if (auto* sources = std::get_if<std::vector<DataSource>>(&value))
    for (DataSource& source : *sources) source.path.clear();
  return config::yaml_text(value);
}

// Values end with a zero byte: texts may hold line ends.
constexpr char end_of_value = '\0';

std::vector<std::string_view> shared_keys() {
  static const std::vector<std::string> own = keys_of_one_rank();
  std::vector<std::string_view> keys;
  for (const config::Field& field : config::fields())
    if (std::ranges::find(own, field.path) == own.end()) keys.push_back(field.path);
  return keys;
}

std::string variable_of(std::string_view key) {
  std::string name = "DELTAPORT_";
  for (const char c : key)
    name +=
        c == '.' ? std::string("__") : std::string(1, static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
  return name;
}

std::string first_difference(const std::string& root, const RunConfig& config) {
  std::size_t begin = 0;
  for (const std::string_view key : shared_keys()) {
    const std::size_t end = root.find(end_of_value, begin);
    if (end == std::string::npos) break;
    const std::string theirs = root.substr(begin, end - begin);
    const std::string mine = value_of(*config::find_field(key), config);
    if (mine != theirs) {
      const bool made =
          key == "checkpoint.dir" && checkpoint_folder(config) == config.run.dir + "/checkpoints";
      return concat(key, made ? ", made of run.dir," : "", " is ", mine, " here, but ", theirs,
                    " on rank 0. It must be the same on all ranks: look at ",
                    variable_of(made ? "run.dir" : key),
                    " in their environments, and at the files that they read");
    }
    begin = end + 1;
  }
  return {};
}

}  // namespace

std::vector<std::string> keys_of_one_rank() {
  return {"run.name",
          "run.dir",       // rank 0 writes there; what is below counts: checkpoint.dir
          "model.preset",  // what it stands for is compared
          "model.linear.chunk_size", "train.micro_batch", "train.loss_chunk_tokens",
          "recurrence.implementation", "attention.implementation", "graph.scope", "graph.warmup_steps",
          "graph.on_failure", "graph.max_shapes", "recompute.gdn_norm_out", "recompute.gdn_core_inputs",
          "recompute.gdn_preparation",
          // offload.enabled and offload.scopes decide which figures are reduced, and which arms `verify` has.
          "offload.fraction", "offload.min_tensor_elements", "offload.keep_last", "offload.slots",
          "offload.max_inflight", "offload.delayed", "offload.pinned_limit", "offload.strict_numa",
          "checkpoint.keep_last", "checkpoint.verify_hashes", "logging.every", "logging.jsonl",
          "logging.progress"};
}

void check_same_config(const Communicator& communicator, const RunConfig& config) {
  if (communicator.size() == 1) return;
  std::string mine;
  for (const std::string_view key : shared_keys())
    (mine += value_of(*config::find_field(key), config)) += end_of_value;
  if (all_the_same(communicator, mine)) return;
  communicator.check_all(first_difference(communicator.broadcast(mine), config), ExitCode::bad_input);
}

void check_same_data(const Communicator& communicator, const std::string& key,
                     const std::string& fingerprint) {
  if (communicator.size() == 1 || all_the_same(communicator, fingerprint)) return;
  const std::string root = communicator.broadcast(fingerprint);
  communicator.check_all(fingerprint == root ? std::string()
                                             : concat(key, ": the token files here (fingerprint ",
                                                      fingerprint, ") are not those of rank 0 (", root,
                                                      "). Names and contents must be the same on all ranks"),
                         ExitCode::bad_input);
}

}  // namespace deltaport::train
