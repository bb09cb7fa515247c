// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"

namespace deltaport::recurrence::cuda {

/// Bytes that `prepared` of such a call holds.
std::size_t prepared_bytes(const GdnForward& arguments);
/// Bytes of scratch that forward needs; 1,024-byte aligned.
std::size_t workspace_bytes(const GdnForward& arguments);
/// Enqueues the forward pass on `stream`. K up to 128 and V are multiples of 8.
cudaError_t forward(const GdnForward& arguments, void* workspace, cudaStream_t stream);

/// The same of the backward pass, which runs the preparation again unless it is given what forward left of it.
std::size_t workspace_bytes(const GdnBackward& arguments);
cudaError_t backward(const GdnBackward& arguments, void* workspace, cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
