// SPDX-License-Identifier: Apache-2.0
#include "offload/host_transfer_queue.hpp"

namespace deltaport::offload {

std::unique_ptr<TransferQueue> make_transfer_queue(const ExecutionSpace&) {
  return std::make_unique<HostTransferQueue>();
}

}  // namespace deltaport::offload
