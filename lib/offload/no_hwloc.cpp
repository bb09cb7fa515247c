// SPDX-License-Identifier: Apache-2.0
// Builds without hwloc: no nodes, no devices, memory from anywhere.
#include <sys/mman.h>

#include "deltaport/core/error.hpp"
#include "deltaport/offload/numa_topology.hpp"
#include "offload/page_calls.hpp"

namespace deltaport::offload {

struct NumaTopology::Impl {};

NumaTopology NumaTopology::of_machine() {
  return NumaTopology(std::make_shared<const Impl>());
}
NumaTopology NumaTopology::from_synthetic(const std::string&) {
  throw ConfigError("a synthetic topology needs hwloc; this build has none");
}
NumaTopology NumaTopology::from_xml(const std::string&) {
  throw ConfigError("a topology from XML needs hwloc; this build has none");
}
NumaTopology NumaTopology::with_allowed(const std::vector<int>&) const {
  throw Error("allowed nodes: those of this machine are set by its cpuset, not here");
}
bool NumaTopology::is_this_machine() const {
  return true;
}
std::vector<int> NumaTopology::nodes() const {
  return {};
}
std::vector<int> NumaTopology::allowed_nodes() const {
  return {};
}
std::optional<std::vector<int>> NumaTopology::nodes_of_pci(const std::string&) const {
  return std::nullopt;
}

namespace {

class PlainPages : public PageCalls {
 public:
  void* allocate_on(const std::vector<int>&, std::size_t, std::string& why) override {
    why = "this build has no hwloc to bind memory with";
    return nullptr;
  }
  void* allocate_anywhere(std::size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
  }
  void touch_from(const std::vector<int>&, void* data, std::size_t bytes) override { touch(data, bytes); }
  std::optional<std::vector<int>> locate(const void*, std::size_t, std::string& why) override {
    why = "this build has no hwloc to find pages with";
    return std::nullopt;
  }
  void free(void* data, std::size_t bytes) noexcept override { munmap(data, bytes); }
};

}  // namespace

std::unique_ptr<PageCalls> make_page_calls(const NumaTopology&) {
  return std::make_unique<PlainPages>();
}

}  // namespace deltaport::offload
