// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"
#include "recurrence/extents.hpp"
#include "recurrence/host/dispatch.hpp"

namespace deltaport::recurrence::host {

template <class T>
constexpr Storage storage_of() {
  return sizeof(T) == 4                ? Storage::float32
         : std::is_same_v<T, bfloat16> ? Storage::bfloat16
                                       : Storage::float16;
}

/// A call of these sizes; tensors are null.
Call call_of(const Extents& extents, double scale);

/// Which walk over a sequence.
enum class Pass { forward, backward };

/// Runs all tasks of a call and returns when they are done. Workspaces, one per thread, come from the arena.
/// Each task has its own outputs, so results do not depend on which thread takes it.
void run(Runtime& runtime, const Extents& extents, const Entry& entry, const Call& call, Pass pass);

}  // namespace deltaport::recurrence::host
