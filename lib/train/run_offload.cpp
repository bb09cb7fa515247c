// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/run_offload.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "deltaport/comm/placement.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/offload/numa_topology.hpp"
#include "train/number_format.hpp"

namespace deltaport {
namespace {

// More of a step than this spent waiting for transfers is worth a word.
constexpr double much_stall = 0.03;
// So many in a row: the first ones touch memory, and anything may hold one up.
constexpr int steps_to_warn = 3;

std::string own_device() {
  const int index = Kokkos::device_id();
  for (const DeviceInfo& device : visible_devices())
    if (device.index == index) return device.pci;
  return {};
}

std::string mib(std::int64_t bytes) {
  return train::formatted("%.1f MiB", static_cast<double>(bytes) / 1048576.0);
}

offload::OffloaderOptions options_of(const OffloadConfig& config, GraphScope graphs) {
  offload::OffloaderOptions options;
  for (const OffloadScope scope : config.scopes) options.scopes.emplace_back(name_of(scope));
  options.rules = {config.fraction, config.keep_last, config.slots};
  options.min_tensor_elements = config.min_tensor_elements;
  options.max_inflight = config.max_inflight;
  // Between captured layers is the only place for transfers; a step's graph holds them wherever they are.
  const bool delayed = config.delayed || graphs == GraphScope::attention || graphs == GraphScope::layer;
  options.start = delayed ? offload::Start::between_layers : offload::Start::at_group;
  return options;
}

std::string times(const OffloadMetrics& m) {
  if (m.to_host_bytes > 0 && m.to_host_seconds + m.to_device_seconds == 0.0)
    return ", inside a captured step, which has no times of its own";
  if (m.to_host_bytes == 0) return {};  // nothing was copied that could hide
  return concat(", stall ", train::step_time(m.stall_seconds), ", overlap ",
                train::formatted("%.1f%%", 100.0 * m.overlap()));
}

std::int64_t moving_groups(const offload::Schedule& schedule) {
  return std::ranges::count_if(schedule.plan(), [](const auto& group) { return group.moves; });
}

}  // namespace

std::string block_summary(const std::vector<ArenaBlock>& blocks, std::size_t names) {
  struct Total {
    std::string name;
    std::int64_t count = 0, bytes = 0;
  };
  std::map<std::string, Total> by_name;
  for (const ArenaBlock& block : blocks) {
    Total& total = by_name[block.name];
    total.name = block.name;
    ++total.count;
    total.bytes += static_cast<std::int64_t>(block.bytes);
  }
  std::vector<Total> totals;
  for (auto& entry : by_name) totals.push_back(std::move(entry.second));
  std::ranges::stable_sort(totals, [](const Total& a, const Total& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min(names, totals.size()); ++i)
    text += concat(i == 0 ? "" : ", ", totals[i].count > 1 ? concat(totals[i].count, " x ") : std::string(),
                   totals[i].name, " ", mib(totals[i].bytes));
  return text;
}

RunOffload::RunOffload(const Communicator& communicator, Runtime& runtime, const OffloadConfig& config,
                       GraphScope graphs)
    : communicator_(communicator), runtime_(runtime), config_(config) {
  offload::PinnedPoolOptions pool;
  // Groups are large and get slabs of their own size; little ones shall not lock much more than they need.
  pool.slab_bytes = std::size_t{16} << 20;
  pool.budget_bytes = static_cast<std::size_t>(config.pinned_limit);
  pool.sharers = static_cast<std::size_t>(communicator.local_size());
  try {
    pool_ = std::make_unique<offload::PinnedPool>(
        offload::make_numa_slab_source({own_device(), config.strict_numa}), pool);
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(concat("offload.pinned_limit = ", config.pinned_limit, ": ", e.what()));
  }
  offloader_ = std::make_unique<offload::Offloader>(
      runtime.arena(), *pool_, offload::make_transfer_queue(runtime.compute()), options_of(config, graphs));
}

std::string RunOffload::description() const {
  std::string scopes;
  for (const OffloadScope scope : config_.scopes)
    scopes += concat(scopes.empty() ? "" : ", ", name_of(scope));
  const offload::PagePlacement placement = pool_->placement();
  return concat(scopes, ", fraction ", config_.fraction, ", ", config_.slots, " slots; host memory on ",
                placement.got.empty() ? "unknown nodes" : offload::node_list(placement.got),
                pool_->pinned() ? ", pinned" : ", not pinned",
                placement.why.empty() ? "" : " (" + placement.why + ")");
}

OffloadMetrics RunOffload::take_metrics(std::int64_t step, double step_seconds) {
  const offload::OffloadStats stats = offloader_->take_stats();
  DELTAPORT_VALIDATE(stats.host_in_use == 0, Error, "offload: after step ", step, " ", stats.host_in_use,
                     " bytes of host memory still hold tensors that backward did not take");
  const ArenaStats arena = runtime_.arena().stats();
  std::int64_t sums[] = {stats.transfers.to_host_bytes, stats.transfers.to_device_bytes, stats.freed,
                         stats.useless, stats.groups};
  communicator_.all_reduce_sum(sums, 5);
  const std::int64_t least =
      communicator_.min(std::min(stats.transfers.to_host_bytes, stats.transfers.to_device_bytes));
  double seconds[] = {stats.transfers.to_host_seconds, stats.transfers.to_device_seconds,
                      stats.transfers.stall_seconds, stats.transfers.to_host_stall_seconds};
  communicator_.all_reduce_max(seconds, 4);
  std::int64_t peaks[] = {static_cast<std::int64_t>(arena.allocated_peak),
                          static_cast<std::int64_t>(arena.reserved_peak),
                          static_cast<std::int64_t>(pool_->stats().retained),
                          static_cast<std::int64_t>(runtime_.driver_used_bytes())};
  communicator_.all_reduce_max(peaks, 4);
  OffloadMetrics m;
  m.step = step;
  m.to_host_bytes = sums[0];
  m.to_device_bytes = sums[1];
  m.freed_bytes = sums[2];
  m.useless_bytes = sums[3];
  m.groups = sums[4];
  m.to_host_seconds = seconds[0];
  m.to_device_seconds = seconds[1];
  m.stall_seconds = seconds[2];
  m.to_host_stall_seconds = seconds[3];
  m.step_seconds = step_seconds;
  m.peak_allocated_bytes = peaks[0];
  m.peak_reserved_bytes = peaks[1];
  m.pinned_bytes = peaks[2];
  m.driver_used_bytes = peaks[3];
  m.peak_blocks = block_summary(runtime_.arena().peak_blocks(), 8);
  m.least_rank_bytes = least;
  return m;
}

std::vector<std::string> RunOffload::take_warnings(const OffloadMetrics& m) {
  std::vector<std::string> warnings = offloader_->take_notes();
  const offload::Schedule& schedule = offloader_->schedule();
  const std::int64_t moving = moving_groups(schedule);
  if (!warned_of_nothing_ && config_.fraction > 0.0 && moving == 0) {
    warned_of_nothing_ = true;
    warnings.push_back(
        schedule.plan().empty()
            ? concat("offload moves nothing: no tensor in its scopes has offload.min_tensor_elements = ",
                     config_.min_tensor_elements, " elements")
            : concat("offload moves nothing: ", schedule.why_nothing_moves()));
  }
  // A wait is the copies' as long as they take at most; beyond that, something else held the step up.
  const double copying = m.to_host_seconds + m.to_device_seconds;
  const double waited = std::min(m.stall_seconds, copying);
  const bool stalled = moving > 0 && m.step > 1 && waited > much_stall * m.step_seconds;
  stalled_steps_ = stalled ? stalled_steps_ + 1 : 0;
  if (!warned_of_stall_ && stalled_steps_ >= steps_to_warn) {
    warned_of_stall_ = true;
    const double hidden = std::floor((1.0 - waited / copying) * config_.fraction * 100.0) / 100.0;
    const double rate = static_cast<double>(m.to_host_bytes + m.to_device_bytes) / copying * 1e-9;
    warnings.push_back(concat(
        "offload: transfers do not hide behind computing: ", mib(m.to_host_bytes + m.to_device_bytes), " at ",
        train::formatted("%.1f", rate), " GB/s take ", train::step_time(copying), " of a step of ",
        train::step_time(m.step_seconds), ", which waited ", train::step_time(waited), " for them; ",
        hidden > 0.0 ? concat("offload.fraction: ", train::formatted("%.2f", hidden), " would fit")
                     : std::string("no offload.fraction hides them")));
  }
  return warnings;
}

std::string RunOffload::summary(const OffloadMetrics& m) const {
  const offload::Schedule& schedule = offloader_->schedule();
  return concat("offload: ", moving_groups(schedule), " of ", schedule.plan().size(),
                " groups move; per step ", mib(m.to_host_bytes), " to the host and ", mib(m.to_device_bytes),
                " back", times(m), "; ", mib(m.pinned_bytes), " of host memory; device peak ",
                mib(m.peak_allocated_bytes), " allocated, ", mib(m.peak_reserved_bytes),
                " reserved: ", m.peak_blocks);
}

}  // namespace deltaport
