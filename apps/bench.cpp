// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "config_options.hpp"
#include "deltaport/comm/session.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/train/step_profile.hpp"
#include "json_file.hpp"

namespace deltaport::app {
namespace {

struct BenchTrainOptions {
  std::int64_t warmup = 2;
  std::int64_t steps = 5;
  double peak_tflops = 0.0;  // 0: measured
  std::string json;
};

nlohmann::ordered_json to_json(const StepProfile& profile, Precision precision) {
  nlohmann::ordered_json json;
  json["precision"] = name_of(precision);
  json["step_seconds"] = profile.step_seconds;
  json["timed_step_seconds"] = profile.timed_step_seconds;
  json["tokens_per_step"] = profile.tokens_per_step;
  for (std::size_t k = 0; k < work_kinds; ++k)
    json["seconds"][std::string(name_of(static_cast<Work>(k)))] = profile.seconds[k];
  json["model_flops"] = {{"products", profile.model_flops.products},
                         {"attention", profile.model_flops.attention},
                         {"recurrence", profile.model_flops.recurrence},
                         {"total", profile.model_flops.total()}};
  json["peak_flops"] = profile.peak.flops;
  json["peak_source"] = profile.peak.source;
  json["mfu"] = profile.utilisation();
  json["first_step_seconds"] = profile.first_step_seconds
                                   ? nlohmann::ordered_json(*profile.first_step_seconds)
                                   : nlohmann::ordered_json();
  json["weights"] = profile.weights;
  json["allocated_peak_bytes"] = profile.allocated_peak;
  json["reserved_peak_bytes"] = profile.reserved_peak;
  json["gemm_flops"] = profile.gemm_flops();
  json["gemm_efficiency"] = profile.gemm_efficiency();
  for (const GemmProfile& g : profile.gemms)
    json["gemms"].push_back({{"m", g.call.m},
                             {"n", g.call.n},
                             {"k", g.call.k},
                             {"dtype", name_of(g.call.operands)},
                             {"output", name_of(g.call.output)},
                             {"transpose_a", g.call.trans_a == Transpose::yes},
                             {"transpose_b", g.call.trans_b == Transpose::yes},
                             {"per_step", g.count},
                             {"seconds_alone", g.alone_seconds}});
  return json;
}

int bench_train(Session& session, const LoadedConfig& loaded, const BenchTrainOptions& options) {
  std::optional<JsonFile> json;
  session.world().agree([&] { json.emplace(session.world().is_root() ? options.json : std::string()); });
  Runtime runtime;
  const auto run = make_training_run(session.world(), runtime, loaded.config);
  std::optional<PeakRate> peak;
  if (options.peak_tflops > 0.0) peak = PeakRate{options.peak_tflops * 1e12, "--peak-tflops"};
  const StepProfile profile = profile_steps(*run, session.world(), options.warmup, options.steps, peak);
  if (!session.world().is_root()) return 0;
  std::fputs(table(profile).c_str(), stdout);
  if (json->wanted()) json->write(to_json(profile, loaded.config.train.precision).dump(2));
  return 0;
}

}  // namespace

void add_bench(CLI::App& parent, const Invocation& invocation, Action& action) {
  auto* bench = parent.add_subcommand("bench", "measure where the time goes");
  bench->require_subcommand(1);
  add_bench_recurrence(*bench, action);
  add_bench_offload(*bench, invocation, action);
  auto* command =
      bench->add_subcommand("train", "split a training step's time by kind of work; products also alone");
  auto options = std::make_shared<BenchTrainOptions>();
  command->add_option("--warmup", options->warmup, "Steps before measuring")->capture_default_str();
  command->add_option("--steps", options->steps, "Steps measured plain, and as many with the timer")
      ->capture_default_str();
  command
      ->add_option(
          "--peak-tflops", options->peak_tflops,
          "Peak that the model's FLOPs are held against, in 10^12 a second and rank (default: the fastest "
          "product measured in this run)")
      ->check(CLI::Validator(
          [](const std::string& text) {
            double value = 0.0;
            if (CLI::detail::lexical_cast(text, value) && value > 0.0 && std::isfinite(value))
              return std::string();
            return "expected a number > 0, found '" + text + "'";
          },
          "> 0"));
  command->add_option("--json", options->json, "Also write the figures to this file");
  accept_config(
      *command,
      "MFU is model FLOPs / (time of a step x peak). Model FLOPs of a step on a rank are its tokens times\n"
      "  6 N                                        N: weights of matrices, an untied embedding left out\n"
      "  6 heads head_dim (seq_len + 1)             per attention layer: scores and values, causal\n"
      "  3 HV (6 K V + 4 C (K + V) + 2 C^2 / 3)     per GDN or GDN2 layer, C = 64\n"
      "A backward counts as two forwards; what is computed again is not counted, and each row of "
      "data.seq_len\n"
      "tokens counts as one document.");
  command->callback([=, &action] {
    action = [=]() -> int {
      const LoadRequest request = request_of(*command, DataSection::required);
      DELTAPORT_VALIDATE(!request.files.empty(), ConfigError, "bench train needs a YAML file");
      return run_session(
          *invocation.argc, *invocation.argv, {.summary = SummaryLine::yes},
          [&](Session& session) { return bench_train(session, load_config(request), *options); });
    };
  });
}

}  // namespace deltaport::app
