// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/oracle.hpp"

namespace deltaport::oracle {

/// Turns the gradients of activated(problem) in `values` into those of the problem's own inputs.
void chain_activations(const Problem<double>& problem, Values& values);

}  // namespace deltaport::oracle
