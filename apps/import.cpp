// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "command.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"

namespace deltaport::app {
namespace {

struct Options {
  std::string folder;
  std::string output;
  bool force = false;
  bool print_model = false;
};

int import(const Options& options) {
  if (options.print_model) {
    std::fputs(model_yaml(read_hugging_face_model(options.folder)).c_str(), stdout);
    return 0;
  }
  DELTAPORT_VALIDATE(!options.output.empty(), ConfigError, "import needs --output FOLDER (or --print-model)");
  const ImportSummary s = import_hugging_face(options.folder, options.output,
                                              options.force ? Overwrite::replace : Overwrite::refuse);
  std::printf("%s: %lld parameters in %lld tensors, %.1f MB, %s\n", s.checkpoint.string().c_str(),
              static_cast<long long>(s.parameters), static_cast<long long>(s.tensors),
              static_cast<double>(s.bytes) / 1e6,
              s.model.preset == "none" ? "no preset's dimensions" : ("preset " + s.model.preset).c_str());
  for (const auto& [group, count] : s.ignored)
    std::printf("  %lld tensors of %s left out; export --mode merge keeps the base's\n",
                static_cast<long long>(count), group.c_str());
  for (const std::string& note : s.notes) std::printf("  %s\n", note.c_str());
  for (const std::string& warning : s.warnings)
    std::fprintf(stderr, "deltaport: warning: %s\n", warning.c_str());
  if (!s.warnings.empty())
    std::fprintf(stderr,
                 "deltaport: warning: they are kept as they are; no model can be trained on from them\n");
  std::printf("to train on from it: deltaport train %s/model.yaml RUN.yaml\n", options.output.c_str());
  return 0;
}

}  // namespace

void add_import(CLI::App& parent, const Invocation&, Action& action) {
  auto* command = parent.add_subcommand("import", "turn a Hugging Face folder of Qwen3.5 into a checkpoint");
  auto options = std::make_shared<Options>();
  command->add_option("folder", options->folder, "Folder with config.json and safetensors files")->required();
  command->add_option("--output,-o", options->output,
                      "Folder to make: a checkpoint of weights, and model.yaml");
  command->add_flag("--force", options->force, "Replace an earlier import there");
  command->add_flag("--print-model", options->print_model,
                    "Only print the keys model.* that config.json gives, e.g. for plan; needs no weights");
  command->footer(
      "Reads Qwen3_5ForConditionalGeneration and Qwen3_5ForCausalLM; tensors of vision and of multi-token "
      "prediction "
      "are left out.");
  command->callback([=, &action] { action = [options] { return import(*options); }; });
}

}  // namespace deltaport::app
