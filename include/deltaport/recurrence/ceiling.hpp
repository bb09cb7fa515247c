// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"

namespace deltaport::recurrence {

/// Operations (two per multiply-add and lane) of a loop of independent fused multiply-adds in registers, run by
/// all threads of the execution space with the vectors that Implementation::host uses; nothing on this machine
/// computes faster. Takes some `seconds`; returns when done. 0 where Implementation::host is not available.
double run_multiply_adds(Runtime& runtime, double seconds);

}  // namespace deltaport::recurrence
