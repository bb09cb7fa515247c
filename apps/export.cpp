// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "command.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"

namespace deltaport::app {
namespace {

struct Options {
  std::string path;
  std::string output;
  std::string base;
  std::string mode = "text";
  std::string dtype;
  double shard_gb = 5.0;
  bool force = false;
};

ExportOptions export_options(const Options& options) {
  ExportOptions out;
  const std::filesystem::path inside = std::filesystem::path(options.path) / "checkpoints";
  out.checkpoint = std::filesystem::is_directory(inside) ? inside : std::filesystem::path(options.path);
  out.output = options.output;
  out.mode = options.mode == "merge" ? ExportMode::merge : ExportMode::text;
  out.base = options.base;
  out.overwrite = options.force ? Overwrite::replace : Overwrite::refuse;
  out.shard_bytes = static_cast<std::uint64_t>(options.shard_gb * 1e9);
  if (options.dtype == "bf16") out.dtype = FileDtype::bf16;
  if (options.dtype == "f32") out.dtype = FileDtype::f32;
  return out;
}

int run_export(const Options& options) {
  const ExportSummary s = export_hugging_face(export_options(options));
  std::printf("%s -> %s: %lld tensors of the text model", s.checkpoint.string().c_str(),
              options.output.c_str(), static_cast<long long>(s.tensors));
  if (s.other_tensors > 0)
    std::printf(", %lld others as in the base", static_cast<long long>(s.other_tensors));
  std::printf(", %.1f MB\n", static_cast<double>(s.bytes) / 1e6);
  for (const std::string& note : s.notes) std::printf("  %s\n", note.c_str());
  return 0;
}

}  // namespace

void add_export(CLI::App& parent, const Invocation&, Action& action) {
  auto* command = parent.add_subcommand("export", "write a checkpoint as a Hugging Face folder of Qwen3.5");
  auto options = std::make_shared<Options>();
  command->add_option("path", options->path, "Run folder, folder of checkpoints, or one checkpoint")
      ->required();
  command->add_option("--output,-o", options->output, "Folder to make")->required();
  command
      ->add_option("--mode", options->mode,
                   "text: Qwen3_5ForCausalLM; merge: the base's files with the text weights replaced")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "merge"}));
  command->add_option("--base", options->base,
                      "Hugging Face folder that the model came from (default: where the checkpoint says)");
  command->add_option("--dtype", options->dtype, "Type of the weights in mode text (default: as they are)")
      ->check(CLI::IsMember({"bf16", "f32"}));
  command->add_option("--shard-gb", options->shard_gb, "Most bytes of one file in mode text, in 10^9")
      ->capture_default_str()
      ->check([](const std::string& text) {
        const double value = std::strtod(text.c_str(), nullptr);
        return value >= 1e-6 && value <= 1e6 ? std::string() : "must be from 1e-6 to 1e6, not " + text;
      });
  command->add_flag("--force", options->force, "Replace an earlier export there");
  command->footer(
      "A_log and the gated norm's weight are written in float32, lm_head.weight only when it is not tied. In "
      "mode merge "
      "every tensor keeps the base's type.");
  command->callback([=, &action] { action = [options] { return run_export(*options); }; });
}

}  // namespace deltaport::app
