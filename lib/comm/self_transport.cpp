// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "comm/transport.hpp"

namespace deltaport::comm {
namespace {

/// With one rank every exchange is a copy or nothing.
class SelfTransport final : public Transport, public std::enable_shared_from_this<SelfTransport> {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void barrier() override {}
  void broadcast(void*, std::size_t, int) override {}
  void gather(const void* data, std::size_t bytes, void* received) override {
    if (bytes > 0) std::memcpy(received, data, bytes);
  }
  void send_to_root(const void*, std::size_t) override {}
  void receive_from(int, void*, std::size_t) override {}
  void exchange(const std::byte* data, const std::vector<int>& begin, std::byte* received) override {
    gather(data, static_cast<std::size_t>(begin.back()), received);
  }
  void all_gather(std::byte*, const std::vector<int>&) override {}
  std::shared_ptr<Transport> node() override { return shared_from_this(); }
  [[noreturn]] void abort(int code) override {
    std::fflush(nullptr);
    std::_Exit(code);
  }
};

}  // namespace

std::shared_ptr<Transport> self_transport() {
  return std::make_shared<SelfTransport>();
}

}  // namespace deltaport::comm
