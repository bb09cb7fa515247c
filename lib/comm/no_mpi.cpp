// SPDX-License-Identifier: Apache-2.0
// What takes MPI's place in a build without it: one rank.
#include "comm/mpi_library.hpp"
#include "comm/transport.hpp"
#include "deltaport/comm/session.hpp"

namespace deltaport {
namespace comm {
namespace {

class SingleRankFailure final : public FailureChannel {
 public:
  FailureRole agree(double) override { return FailureRole::collective; }
};

}  // namespace

bool start_mpi(int&, char**&) {
  return false;
}
void stop_mpi() {}
std::unique_ptr<FailureChannel> open_failure_channel() {
  return std::make_unique<SingleRankFailure>();
}
std::shared_ptr<Transport> world_transport() {
  return self_transport();
}

}  // namespace comm

MpiInfo mpi_info() {
  return {};
}

}  // namespace deltaport
