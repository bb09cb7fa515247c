// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>

#include "config_options.hpp"
#include "deltaport/comm/session.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/train/trainer.hpp"

namespace deltaport::app {
namespace {

struct Options {
  bool resume = false;
  std::vector<std::string> config_changes;
};

int train(Session& session, const LoadedConfig& loaded, const Options& options) {
  Runtime runtime;
  Trainer trainer(session.world(), runtime, loaded, {options.config_changes});
  return static_cast<int>(trainer.run());
}

}  // namespace

void add_train(CLI::App& parent, const Invocation& invocation, Action& action) {
  auto* command = parent.add_subcommand(
      "train", "train the model that a YAML file describes: FILE... [--section.key=value ...]");
  auto options = std::make_shared<Options>();
  command->add_flag(
      "--resume", options->resume,
      "Go on from the newest checkpoint of the run, or start if there is none (checkpoint.resume=auto)");
  command
      ->add_option("--allow-config-change", options->config_changes,
                   "Keys that may differ from the checkpoint's configuration, e.g. train.steps,optimizer.lr")
      ->delimiter(',')
      ->allow_extra_args(false);
  accept_config(*command);
  command->footer("Several ranks: mpirun -n 2 deltaport train RUN.yaml\n\n" + command->get_footer() +
                  "\n\nKeys:\n" + key_reference());
  command->callback([=, &action] {
    action = [=]() -> int {
      LoadRequest request = request_of(*command, DataSection::required);
      DELTAPORT_VALIDATE(!request.files.empty(), ConfigError,
                         "train needs a YAML file, e.g. deltaport train run.yaml");
      if (options->resume) request.overrides.insert(request.overrides.begin(), "--checkpoint.resume=auto");
      return run_session(*invocation.argc, *invocation.argv, {.summary = SummaryLine::yes},
                         [&](Session& session) {
                           // Every rank reads the same files; a wrong file fails everywhere alike and is
                           // reported once.
                           const LoadedConfig loaded = load_config(request);
                           if (session.world().is_root())
                             for (const std::string& warning : loaded.warnings)
                               std::fprintf(stderr, "%s\n", warning.c_str());
                           return train(session, loaded, *options);
                         });
    };
  });
}

}  // namespace deltaport::app
