// SPDX-License-Identifier: Apache-2.0
// Everything about build, machine and launch that a report of a problem should hold.
#include <sys/resource.h>
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "deltaport/comm/session.hpp"
#include "deltaport/core/blas.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/core/tile_gemm.hpp"
#include "deltaport/core/version.hpp"
#include "deltaport/offload/numa_topology.hpp"
#include "deltaport/offload/slab_source.hpp"

namespace deltaport::app {
namespace {

using Json = nlohmann::ordered_json;

std::string gib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

/// The same for all ranks of a job.
Json build_facts() {
  const MpiInfo mpi = mpi_info();
  const BlasInfo blas = blas_info();
  Json facts;
  facts["deltaport"] = version;
  facts["build type"] = DELTAPORT_BUILD_TYPE;
  facts["compiler"] = std::string(DELTAPORT_COMPILER) + ", C++" + std::to_string(__cplusplus / 100 % 100);
  facts["Kokkos"] =
      concat(KOKKOS_VERSION / 10000, '.', KOKKOS_VERSION / 100 % 100, '.', KOKKOS_VERSION % 100);
  facts["kernels"] = Kokkos::DefaultExecutionSpace::name();
  facts["host kernels"] = Kokkos::DefaultHostExecutionSpace::name();
  facts["MPI"] = mpi.built_in ? mpi.library : "not built in";
  if (mpi.built_in) facts["MPI standard"] = mpi.standard + ", threads " + mpi.thread_level;
  facts["BLAS"] = blas.library;
  if (!blas.threading.empty()) facts["BLAS threads"] = blas.threading;
  if (const std::string advice = blas_advice(); !advice.empty()) facts["BLAS advice"] = advice;
  facts["bfloat16 products"] =
      runs_on_host ? "float32 sums, operands widened in tiles" : "float32 sums, tensor cores";
  facts["tile kernel"] = tile_gemm_isa();
  if (!device_runtime().empty()) facts["device runtime"] = device_runtime();
  return facts;
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : concat(limit.rlim_cur / 1024, " KiB");
}

std::string numa_text() {
  std::string text;
  for (const NumaNode& node : numa_nodes())
    text += concat(text.empty() ? "" : "\n", "node ", node.index, ": ", gib(node.total_bytes), ", cpus ",
                   index_list(node.cpus));
  return text.empty() ? "unknown" : text;
}

std::string free_text() {
  std::string text;
  for (const NumaNode& node : numa_nodes())
    text += concat(text.empty() ? "" : ", ", "node ", node.index, ": ", gib(node.free_bytes));
  return text.empty() ? "unknown" : text;
}

std::string near_text(const std::string& pci) {
  const offload::DeviceLocality near = offload::device_locality(pci);
  return near.known ? ", near NUMA " + offload::node_list(near.nodes) : ", NUMA node unknown";
}

/// One page near the device tells where memory for its copies can be had.
std::string host_memory_text(int device) {
  std::string pci;
  for (const DeviceInfo& d : visible_devices())
    if (d.index == device) pci = d.pci;
  try {
    const auto source = offload::make_numa_slab_source({pci, false});
    const offload::Slab page = source->allocate(1);
    source->release(page);
    const offload::PagePlacement& placement = page.placement;
    return concat(page.pinned ? "pinned, " : "not pinned, ",
                  placement.achieved ? "found on " + offload::node_list(placement.got) : "place uncertain",
                  " (", placement.why, ")");
  } catch (const Error& e) {
    return e.what();
  }
}

std::string device_text(int chosen) {
  std::string text;
  for (const DeviceInfo& d : visible_devices())
    text +=
        concat(text.empty() ? "" : "\n", d.index, ": ", d.name, ", capability ", d.compute_capability, ", ",
               gib(d.memory_bytes), ", PCI ", d.pci, near_text(d.pci), d.index == chosen ? " (used)" : "");
  return text.empty() ? "none" : text;
}

/// Of one rank.
Json rank_facts(const Session& session) {
  const std::vector<int> cpus = allowed_cpus();
  const std::size_t memory_limit = cgroup_memory().limit_bytes;
  const double cpu_limit = cgroup_cpu_limit();
  Json facts;
  facts["host"] = host_name();
  facts["NUMA nodes"] = numa_text();
  facts["free memory"] = free_text();
  facts["may run on"] = concat("cpus ", index_list(cpus), " (", cores_of(cpus).size(),
                               cores_of(cpus).size() == 1 ? " core)" : " cores)");
  facts["threads"] = std::to_string(session.threads());
  facts["devices"] = device_text(session.device());
  facts["host memory"] = host_memory_text(session.device());
  facts["cpu limit"] = cpu_limit < 1e9 ? concat(cpu_limit, " cpus (control group)") : "none";
  facts["memory limit"] = memory_limit > 0 ? gib(memory_limit) + " (control group)" : "none";
  facts["locked memory"] = locked_memory_limit();
  return facts;
}

void print_row(const std::string& label, std::string value) {
  constexpr std::size_t width = 18;
  for (std::size_t at = 0; (at = value.find('\n', at)) != std::string::npos; at += width + 1)
    value.insert(at + 1, width, ' ');
  std::printf("%-*s%s\n", static_cast<int>(width), label.c_str(), value.c_str());
}

/// "0-2,5: " before a value that not all ranks share.
void print_by_rank(const std::string& label, const std::vector<Json>& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::string value = ranks[r].at(label);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == value; });
    if (group == groups.end()) group = groups.insert(groups.end(), {value, {}});
    group->second.push_back(static_cast<int>(r));
  }
  if (label == "free memory") groups.resize(1);  // changes from moment to moment
  for (const auto& [value, members] : groups) {
    const bool all = groups.size() == 1;
    print_row(
        &value == &groups.front().first ? label : "",
        all ? value : concat(members.size() == 1 ? "rank " : "ranks ", index_list(members), ": ", value));
  }
}

void print_text(const Json& build, const std::vector<Json>& ranks, const std::string& warning) {
  for (const auto& [label, value] : build.items()) print_row(label, value.get<std::string>());
  print_row("ranks", std::to_string(ranks.size()));
  for (const auto& fact : ranks.front().items()) print_by_rank(fact.key(), ranks);
  if (!warning.empty()) print_row("warning", warning);
}

int info(Session& session, bool json) {
  std::vector<Json> ranks;
  for (const std::string& text : session.world().gather(rank_facts(session).dump()))
    ranks.push_back(Json::parse(text));
  if (!session.world().is_root()) return 0;
  const Json build = build_facts();
  if (json)
    std::puts(
        Json{{"build", build}, {"ranks", ranks}, {"warning", session.placement_warning()}}.dump(2).c_str());
  else
    print_text(build, ranks, session.placement_warning());
  return 0;
}

}  // namespace

void add_info(CLI::App& parent, const Invocation& invocation, Action& action) {
  CLI::App* command = parent.add_subcommand("info", "Show versions, backends, ranks, NUMA nodes and devices");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([=, &action] {
    action = [=] {
      return run_session(*invocation.argc, *invocation.argv, {},
                         [&](Session& session) { return info(session, *json); });
    };
  });
}

}  // namespace deltaport::app
