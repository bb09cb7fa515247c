// SPDX-License-Identifier: Apache-2.0
#include "offload/page_calls.hpp"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "deltaport/core/error.hpp"
#include "offload/bitmap.hpp"
#include "offload/topology_impl.hpp"

namespace deltaport::offload {
namespace {

class HwlocPages : public PageCalls {
 public:
  explicit HwlocPages(const NumaTopology& topology) : topology_(topology) {}

  void* allocate_on(const std::vector<int>& nodes, std::size_t bytes, std::string& why) override {
    if (!topology_.is_this_machine()) {
      why = "the topology is not this machine's";
      return nullptr;
    }
    errno = 0;
    void* data = hwloc_alloc_membind(get(), bytes, Bitmap(nodes).get(), HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_STRICT);
    if (data == nullptr)
      why = concat("the system refuses to bind memory to ", node_list(nodes), ": ", std::strerror(errno));
    return data;
  }

  void* allocate_anywhere(std::size_t bytes) override { return hwloc_alloc(get(), bytes); }

  void touch_from(const std::vector<int>& nodes, void* data, std::size_t bytes) override {
    const Bitmap cpus;
    hwloc_cpuset_from_nodeset(get(), cpus.get(), Bitmap(nodes).get());
    hwloc_bitmap_and(cpus.get(), cpus.get(), hwloc_topology_get_allowed_cpuset(get()));
    const bool can_move = topology_.is_this_machine() && !hwloc_bitmap_iszero(cpus.get());
    // A thread of its own: the caller's binding stays as it is.
    const auto move_and_touch = [&] {
      if (can_move) (void)hwloc_set_cpubind(get(), cpus.get(), HWLOC_CPUBIND_THREAD);
      touch(data, bytes);
    };
    try {
      std::thread(move_and_touch).join();
    } catch (const std::system_error&) {  // no thread to be had
      touch(data, bytes);
    }
  }

  std::optional<std::vector<int>> locate(const void* data, std::size_t bytes, std::string& why) override {
    if (!topology_.is_this_machine()) {
      why = "the topology is not this machine's";
      return std::nullopt;
    }
    errno = 0;
    const Bitmap nodes;
    if (hwloc_get_area_memlocation(get(), data, bytes, nodes.get(), HWLOC_MEMBIND_BYNODESET) == 0 &&
        !hwloc_bitmap_iszero(nodes.get()))
      return indices_of(nodes.get());
    why = concat("the system does not tell where pages are: ",
                 errno != 0 ? std::strerror(errno) : "no node has any");
    return std::nullopt;
  }

  void free(void* data, std::size_t bytes) noexcept override { hwloc_free(get(), data, bytes); }

 private:
  hwloc_topology_t get() const { return topology_.impl().topology.get(); }

  NumaTopology topology_;
};

}  // namespace

std::unique_ptr<PageCalls> make_page_calls(const NumaTopology& topology) {
  return std::make_unique<HwlocPages>(topology);
}

}  // namespace deltaport::offload
