// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "command.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/version.hpp"
#include "help_format.hpp"
#include "unknown_options.hpp"

namespace {

// In the order of a user's way: check, prepare, train, look, measure. A command is listed once its file exists.
constexpr deltaport::app::AddCommand commands[] = {
    deltaport::app::add_validate, deltaport::app::add_print_config, deltaport::app::add_schema,
    deltaport::app::add_plan,     deltaport::app::add_data,         deltaport::app::add_import,
    deltaport::app::add_train,    deltaport::app::add_generate,     deltaport::app::add_export,
    deltaport::app::add_report,   deltaport::app::add_op,           deltaport::app::add_bench,
    deltaport::app::add_verify,   deltaport::app::add_info,
};

// A full disk behind standard output shows only when it is flushed.
int with_output_written(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush()) return code;
  std::fprintf(stderr, "deltaport: error: standard output could not be written\n");
  return code != 0 ? code : static_cast<int>(deltaport::ExitCode::failure);
}

// CLI11 would only say that a subcommand is missing.
bool subcommands_known(CLI::App& app, int argc, char** argv) {
  CLI::App* level = &app;
  std::string command = "deltaport";
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto known = level->get_subcommands([](CLI::App*) { return true; });
    if (known.empty()) break;
    const auto named = [&](const CLI::App* each) { return each->get_name() == argv[i]; };
    const auto found = std::find_if(known.begin(), known.end(), named);
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const CLI::App* each : known) names.push_back(each->get_name());
      std::fprintf(stderr, "deltaport: error: unknown subcommand '%s'%s (%s --help lists them)\n", argv[i],
                   deltaport::app::did_you_mean(argv[i], names).c_str(), command.c_str());
      return false;
    }
    level = *found;
    command += " " + level->get_name();
  }
  return true;
}

// What the parser did not like, in the form of all other errors. An unknown option comes first: often it is why something
// else is missing.
std::string parse_message(const std::vector<std::string>& words, const CLI::App* app,
                          const CLI::Error& error) {
  std::string command = "deltaport";
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += deltaport::concat(' ', app->get_name());
  }
  // Of the words in their order, those that the parser could not place: values may look like options.
  std::vector<std::string> left = app->remaining(true), unplaced;
  for (const CLI::App* above = app->get_parent(); above != nullptr; above = above->get_parent())
    for (const std::string& word : above->remaining()) left.push_back(word);
  for (const std::string& word : words)
    if (std::ranges::count(left, word) > 0) unplaced.push_back(word);
  std::string text = error.what();
  if (const auto unknown = deltaport::app::unknown_options(unplaced, *app); !unknown.empty())
    text = deltaport::concat("unknown option '", unknown.front(), "'",
                             deltaport::app::did_you_mean_option(unknown.front(), *app));
  return deltaport::concat("deltaport: error: ", text, "\nRun ", command, " --help for more information.\n");
}

int run(int argc, char** argv) {
  CLI::App app{"deltaport " + std::string(deltaport::version) +
               ": trains hybrid Gated DeltaNet language models, described in one YAML file"};
  app.require_subcommand(1);
  const std::vector<std::string> words(argv + 1, argv + argc);
  app.failure_message(
      [&](const CLI::App* at, const CLI::Error& error) { return parse_message(words, at, error); });
  app.formatter(std::make_shared<deltaport::app::HelpFormat>());
  app.set_version_flag("--version", deltaport::version);
  app.footer(
      "Exit codes: 0 fine, 1 failure, 2 bad input, 3 non-finite loss, 4 data, 5 checkpoint, 6 "
      "communication,\n"
      "85 stopped by a signal after a checkpoint (start the same command again).");
  deltaport::app::Action action;
  const deltaport::app::Invocation invocation{&argc, &argv};
  for (const auto add : commands) add(app, invocation, action);
  if (!subcommands_known(app, argc, argv)) return static_cast<int>(deltaport::ExitCode::bad_input);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return with_output_written(app.exit(e) == 0 ? 0 : static_cast<int>(deltaport::ExitCode::bad_input));
  }
  return with_output_written(action ? action() : 0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const deltaport::Error& e) {
    std::fprintf(stderr, "deltaport: error: %s\n", e.what());
    return static_cast<int>(e.exit_code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "deltaport: error: out of memory; use smaller sizes or a machine with more\n");
    return static_cast<int>(deltaport::ExitCode::failure);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "deltaport: error: %s\n", e.what());
    return static_cast<int>(deltaport::ExitCode::failure);
  }
}
