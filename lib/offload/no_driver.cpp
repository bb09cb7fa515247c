// SPDX-License-Identifier: Apache-2.0
#include "offload/driver.hpp"

namespace deltaport::offload {
namespace {

class NoDriver : public Driver {
 public:
  bool present() const override { return false; }
  int numa_node(const std::string&) const override { return -1; }
  std::string register_pages(void*, std::size_t) override { return "this build has no device"; }
  void unregister_pages(void*) noexcept override {}
};

}  // namespace

std::shared_ptr<Driver> make_driver() {
  return std::make_shared<NoDriver>();
}

}  // namespace deltaport::offload
