// SPDX-License-Identifier: Apache-2.0
#include "bench_offload_arm.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deltaport/comm/session.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/train/run_offload.hpp"
#include "deltaport/train/training_run.hpp"
#include "json_file.hpp"

namespace deltaport::app {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OffloadArm, on, allocated_bytes, reserved_bytes, driver_used_bytes,
                                   pinned_bytes, to_host_bytes, to_device_bytes, stall_seconds,
                                   to_host_stall_seconds, copy_seconds, overlap, step_seconds, loss_hex,
                                   peak_blocks, nothing_moved, warmup_steps, graph_scope, capture_seconds,
                                   captured_steps, eager_steps, graph_notes)

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

// Steps after the eager ones: one may measure anew because the first changed what moves, the next captures, and the
// last has replayed once. The same with offload and without, as both arms must end with the same step.
std::int64_t warmup_of(const RunConfig& config, std::int64_t asked) {
  if (config.graph.scope == GraphScope::none) return asked;
  return std::max(asked, config.graph.warmup_steps + 3);
}

OffloadArm measure(Session& session, const LoadedConfig& loaded, std::int64_t warmup, std::int64_t steps) {
  Runtime runtime;
  const auto training = make_training_run(session.world(), runtime, loaded.config);
  AnyTrainingRun& run = *training;
  OffloadArm arm;
  arm.on = run.offload() != nullptr;
  arm.graph_scope = name_of(loaded.config.graph.scope);
  arm.warmup_steps = warmup = warmup_of(loaded.config, warmup);
  for (std::int64_t i = 0; i < warmup + steps; ++i) {
    const graph::Stats before = run.graphs() != nullptr ? run.graphs()->stats() : graph::Stats{};
    runtime.arena().reset_peak();
    const auto start = std::chrono::steady_clock::now();
    const StepResult result = run.step(i);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    OffloadMetrics metrics;
    if (arm.on) metrics = run.offload()->take_metrics(i + 1, seconds);
    if (run.graphs() != nullptr) {
      const graph::Stats after = run.graphs()->stats();
      arm.capture_seconds = after.capture_seconds;
      if (i >= warmup) {
        arm.captured_steps += after.capture_seconds > before.capture_seconds ? 1 : 0;
        arm.eager_steps += after.launches == before.launches ? 1 : 0;
      }
    }
    if (i < warmup) continue;
    char hex[40];
    std::snprintf(hex, sizeof hex, "%a", result.loss);
    arm.loss_hex = hex;
    arm.step_seconds.push_back(seconds);
    const ArenaStats stats = runtime.arena().stats();
    if (static_cast<std::int64_t>(stats.allocated_peak) > arm.allocated_bytes) {
      arm.allocated_bytes = static_cast<std::int64_t>(stats.allocated_peak);
      arm.peak_blocks = block_summary(runtime.arena().peak_blocks(), 8);
    }
    arm.reserved_bytes = std::max(arm.reserved_bytes, static_cast<std::int64_t>(stats.reserved_peak));
    arm.driver_used_bytes =
        std::max(arm.driver_used_bytes, static_cast<std::int64_t>(runtime.driver_used_bytes()));
    arm.pinned_bytes = std::max(arm.pinned_bytes, metrics.pinned_bytes);
    arm.to_host_bytes = std::max(arm.to_host_bytes, metrics.to_host_bytes);
    arm.to_device_bytes = std::max(arm.to_device_bytes, metrics.to_device_bytes);
    arm.stall_seconds += metrics.stall_seconds / static_cast<double>(steps);
    arm.to_host_stall_seconds += metrics.to_host_stall_seconds / static_cast<double>(steps);
    arm.copy_seconds += (metrics.to_host_seconds + metrics.to_device_seconds) / static_cast<double>(steps);
  }
  if (run.graphs() != nullptr) arm.graph_notes = run.graphs()->take_notes();
  if (arm.on && arm.to_host_bytes == 0)
    for (const std::string& why : run.offload()->take_warnings({}))
      arm.nothing_moved += (arm.nothing_moved.empty() ? "" : "; ") + why;
  if (arm.copy_seconds > 0.0) arm.overlap = std::clamp(1.0 - arm.stall_seconds / arm.copy_seconds, 0.0, 1.0);
  return arm;
}

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string change(std::int64_t off, std::int64_t on) {
  return format("%.1f -> %.1f", static_cast<double>(off) / 1048576.0, static_cast<double>(on) / 1048576.0);
}

std::vector<double> changes_of(const std::vector<OffloadPair>& pairs) {
  std::vector<double> changes;
  for (const OffloadPair& pair : pairs) changes.push_back(pair.time_change());
  return changes;
}

/// What makes the times of an arm others than those of a captured run.
std::string graph_remarks(const char* label, const OffloadArm& arm) {
  std::string out;
  if (arm.captured_steps > 0)
    out += concat("  ", label, ": captured in ", arm.captured_steps, " of ", arm.step_seconds.size(),
                  " measured steps, whose times hold it; raise --warmup\n");
  if (arm.eager_steps > 0)
    out += concat("  ", label, ": ", arm.eager_steps, " of ", arm.step_seconds.size(),
                  " measured steps ran eagerly, without a captured graph\n");
  for (const std::string& note : arm.graph_notes) out += concat("  ", label, ": ", note, "\n");
  return out;
}

}  // namespace

double OffloadArm::median_step_seconds() const {
  return median(step_seconds);
}

int run_offload_arm(const Invocation& invocation, LoadRequest request, bool on, std::int64_t warmup,
                    std::int64_t steps, const std::string& path) {
  request.overrides.push_back(std::string("--offload.enabled=") + (on ? "true" : "false"));
  return run_session(*invocation.argc, *invocation.argv, {}, [&](Session& session) {
    const OffloadArm arm = measure(session, load_config(request), warmup, steps);
    JsonFile(path).write(nlohmann::json(arm).dump());
    return 0;
  });
}

OffloadArm read_offload_arm(const std::string& path) {
  std::ifstream file(path);
  try {
    return nlohmann::json::parse(file).get<OffloadArm>();
  } catch (const nlohmann::json::exception& e) {
    throw Error(concat(path, ": ", e.what()));
  }
}

std::string offload_table(const std::vector<OffloadPair>& pairs) {
  const OffloadPair& last = pairs.back();
  const std::vector<double> changes = changes_of(pairs);
  const auto [least, most] = std::minmax_element(changes.begin(), changes.end());
  const bool same =
      std::all_of(pairs.begin(), pairs.end(), [](const OffloadPair& p) { return p.same_bits(); });
  const auto row = [](const char* label, const std::string& value) {
    return format("  %-28s %s\n", label, value.c_str());
  };
  std::string out = "offload off -> on, MiB\n";
  out += row("allocated peak", change(last.off.allocated_bytes, last.on.allocated_bytes));
  out += row("reserved peak", change(last.off.reserved_bytes, last.on.reserved_bytes));
  out += row("driver used", last.on.driver_used_bytes > 0
                                ? change(last.off.driver_used_bytes, last.on.driver_used_bytes)
                                : std::string("not known on hosts"));
  out += row("pinned retained", format("%.1f", static_cast<double>(last.on.pinned_bytes) / 1048576.0));
  out += row("to the host, back per step", change(last.on.to_host_bytes, last.on.to_device_bytes));
  out += row("step time, ms", format("%.2f -> %.2f", last.off.median_step_seconds() * 1e3,
                                     last.on.median_step_seconds() * 1e3));
  out += row("change, median [range]", format("%+.2f %% [%+.2f, %+.2f] of %zu pairs", 100 * median(changes),
                                              100 * *least, 100 * *most, pairs.size()));
  out += row(
      "stall per step, ms",
      last.on.copy_seconds > 0.0
          ? format("%.3f (%.3f for the host) of %.3f copying, overlap %.1f %%", last.on.stall_seconds * 1e3,
                   last.on.to_host_stall_seconds * 1e3, last.on.copy_seconds * 1e3, 100 * last.on.overlap)
      : last.on.graph_scope == "step" ? std::string("not known inside a captured step")
                                      : std::string("not measured"));
  if (last.on.graph_scope != "none") {
    out += row("warm-up, steps", concat(last.on.warmup_steps));
    out += row("capture timed apart, ms",
               format("%.2f -> %.2f", last.off.capture_seconds * 1e3, last.on.capture_seconds * 1e3));
    out += graph_remarks("offload off", last.off) + graph_remarks("offload on", last.on);
  }
  out += row("last loss", same ? "the same bits" : "DIFFERENT");
  out += "  peak without: " + last.off.peak_blocks + "\n  peak with:    " + last.on.peak_blocks + "\n";
  return out;
}

std::string offload_json(const std::vector<OffloadPair>& pairs) {
  nlohmann::json json;
  json["time_change_median"] = median(changes_of(pairs));
  for (const OffloadPair& pair : pairs)
    json["pairs"].push_back({{"off", pair.off},
                             {"on", pair.on},
                             {"time_change", pair.time_change()},
                             {"same_bits", pair.same_bits()}});
  return json.dump(2);
}

}  // namespace deltaport::app
