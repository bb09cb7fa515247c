// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/offload/numa_topology.hpp"

namespace deltaport::offload {

/// What is asked of the operating system about pages. Sizes are whole pages.
class PageCalls {
 public:
  PageCalls() = default;
  virtual ~PageCalls() = default;
  PageCalls(const PageCalls&) = delete;
  PageCalls& operator=(const PageCalls&) = delete;

  /// Memory whose pages can only be on these nodes; nullptr, and why, when the system does not do that.
  virtual void* allocate_on(const std::vector<int>& nodes, std::size_t bytes, std::string& why) = 0;
  /// Memory from anywhere; nullptr when there is none.
  virtual void* allocate_anywhere(std::size_t bytes) = 0;
  /// Writes to every page, from processors of these nodes if it can choose: memory that is not bound comes from the
  /// node that touches it first.
  virtual void touch_from(const std::vector<int>& nodes, void* data, std::size_t bytes) = 0;
  /// Nodes on which pages are; nullopt, and why, when the system does not tell.
  virtual std::optional<std::vector<int>> locate(const void* data, std::size_t bytes, std::string& why) = 0;
  virtual void free(void* data, std::size_t bytes) noexcept = 0;
};

/// The calls of this machine.
std::unique_ptr<PageCalls> make_page_calls(const NumaTopology& topology);

/// Writes to every page.
void touch(void* data, std::size_t bytes);

}  // namespace deltaport::offload
