// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include "comm/transport.hpp"
#include "deltaport/comm/communicator.hpp"

namespace deltaport {

struct Communicator::Impl {
  std::shared_ptr<comm::Transport> transport;
  int local_rank = 0;
  int local_size = 1;

  // Of sum_gradients.
  using PinnedBuffer = Kokkos::View<std::byte*, Kokkos::SharedHostPinnedSpace>;
  std::int64_t bucket_elements = std::int64_t{1} << 20;  // a few MiB: fits caches
  Staging staging = Staging::automatic;
  PinnedBuffer staged;    // one bucket on its way between device and MPI
  PinnedBuffer received;  // the parts of the own share, from all ranks
};

}  // namespace deltaport
