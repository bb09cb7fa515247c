// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace deltaport::recurrence::cuda {

/// Whether the current device can run the kernels: they were compiled for it, and a block may have the shared memory
/// that they ask for.
bool device_runs_kernels();

}  // namespace deltaport::recurrence::cuda
