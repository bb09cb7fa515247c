// SPDX-License-Identifier: Apache-2.0
// Trains with and without offload, each time in a fresh process, in turns.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "bench_offload_arm.hpp"
#include "child_process.hpp"
#include "config_options.hpp"
#include "deltaport/core/error.hpp"
#include "json_file.hpp"

namespace deltaport::app {
namespace {

struct BenchOffloadOptions {
  int pairs = 5;
  std::int64_t warmup = 3, steps = 10;
  std::string json, arm, arm_output;  // the last two, and parent: this process is one arm
  long parent = 0;
};

/// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "deltaport-bench-XXXXXX").string();
    DELTAPORT_VALIDATE(mkdtemp(pattern.data()) != nullptr, Error, "cannot make a folder like ", pattern);
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Memory that one arm leaves behind, in allocators and in the driver, must not meet the other.
OffloadArm in_fresh_process(ChildProcesses& processes, const LoadRequest& request,
                            const BenchOffloadOptions& options, const char* arm, const std::string& output) {
  std::vector<std::string> arguments = {"bench",
                                        "offload",
                                        concat("--arm=", arm),
                                        concat("--arm-output=", output),
                                        concat("--arm-parent=", getpid()),
                                        concat("--warmup=", options.warmup),
                                        concat("--steps=", options.steps)};
  arguments.insert(arguments.end(), request.files.begin(), request.files.end());
  arguments.insert(arguments.end(), request.overrides.begin(), request.overrides.end());
  DELTAPORT_VALIDATE(processes.run(arguments), Error, "the arm '", arm, "' failed; its message is above");
  return read_offload_arm(output);
}

// The longest pairs of a wrong run teach no more than the first.
void check_moved(const OffloadArm& on) {
  DELTAPORT_VALIDATE(
      on.to_host_bytes > 0, ConfigError, "offload moved nothing",
      on.nothing_moved.empty() ? "" : concat(" (", on.nothing_moved, ")"),
      "; lower offload.min_tensor_elements, offload.slots or offload.keep_last, raise offload.fraction, or "
      "use a deeper model");
}

std::vector<OffloadPair> measure_pairs(const LoadRequest& request, const BenchOffloadOptions& options) {
  ChildProcesses processes;
  const ScratchFolder scratch;
  std::vector<OffloadPair> pairs;
  for (int i = 0; i < options.pairs; ++i) {
    OffloadPair pair;
    const auto run = [&](const char* arm) {
      return in_fresh_process(processes, request, options, arm, scratch / concat(arm, i, ".json"));
    };
    // The order alternates: a machine that warms up or slows down favours neither.
    if (i % 2 == 0) pair.off = run("off");
    pair.on = run("on");
    if (i % 2 == 1) pair.off = run("off");
    check_moved(pair.on);
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

int bench_offload(const LoadRequest& request, const BenchOffloadOptions& options) {
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    DELTAPORT_VALIDATE(std::getenv(size) == nullptr, ConfigError,
                       "bench offload starts its own processes: call it "
                       "without mpirun");
  JsonFile json(options.json);
  const std::vector<OffloadPair> pairs = measure_pairs(request, options);
  std::fputs(offload_table(pairs).c_str(), stdout);
  if (json.wanted()) json.write(offload_json(pairs));
  for (const OffloadPair& pair : pairs)
    DELTAPORT_VALIDATE(pair.same_bits(), Error, "offload changed the loss: ", pair.off.loss_hex, " without, ",
                       pair.on.loss_hex, " with");
  return 0;
}

}  // namespace

void add_bench_offload(CLI::App& bench, const Invocation& invocation, Action& action) {
  auto* command = bench.add_subcommand(
      "offload",
      "train with offload and without, in turns and in fresh processes: memory, time, stalls, bits");
  auto options = std::make_shared<BenchOffloadOptions>();
  command
      ->add_option(
          "--pairs", options->pairs,
          "How often to train without and with: each pair is two fresh processes, their order alternating")
      ->capture_default_str()
      ->check(at_least(1));
  command
      ->add_option(
          "--warmup", options->warmup,
          "Steps of each process before measuring: the first learns what moves and fills the pinned pool. "
          "With captured graphs at least graph.warmup_steps + 3, so that the capture is over")
      ->capture_default_str()
      ->check(at_least<std::int64_t>(1));
  command->add_option("--steps", options->steps, "Steps measured in each process, after the warm-up")
      ->capture_default_str()
      ->check(at_least<std::int64_t>(1));
  command->add_option("--json", options->json,
                      "Also write every pair's figures to this file: memory, times, stalls, bytes, losses");
  command->add_option("--arm", options->arm, "")->group("")->check(CLI::IsMember({"off", "on"}));
  command->add_option("--arm-output", options->arm_output, "")->group("");
  command->add_option("--arm-parent", options->parent, "")->group("");
  accept_config(
      *command,
      "What moves is what the run's own keys offload.* say (deltaport validate --help), but for "
      "offload.enabled,\n"
      "which the arms set: false and true, whatever files and command line say. Tells allocated and reserved "
      "peaks,\n"
      "pinned memory, step times and their ratio, waiting, bytes moved, and the time of captures apart.\n"
      "Exit code 1 when the losses differ in any bit, 2 when nothing moved. Call it without mpirun.");
  command->callback([=, &action] {
    action = [=]() -> int {
      const LoadRequest request = request_of(*command, DataSection::required);
      DELTAPORT_VALIDATE(!request.files.empty(), ConfigError, "bench offload needs a YAML file");
      if (!options->arm.empty()) {
        end_with_parent(options->parent);
        return run_offload_arm(invocation, request, options->arm == "on", options->warmup, options->steps,
                               options->arm_output);
      }
      load_with_warnings(request);  // mistakes are told once
      try {
        return bench_offload(request, *options);
      } catch (const Interrupted& interrupted) {
        interrupted.end();
      }
    };
  });
}

}  // namespace deltaport::app
