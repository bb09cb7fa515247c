// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "deltaport/comm/communicator.hpp"
#include "deltaport/config/run_config.hpp"

namespace deltaport::train {

/// Keys that each rank may set for itself: what a machine has and how it computes. All others must be the same, as
/// ranks that do different things wait for each other for ever or train replicas that drift apart.
std::vector<std::string> keys_of_one_rank();

/// Throws CollectiveError (bad input) on every rank when a configuration differs from rank 0's, naming the first such
/// rank, the first key and both values. Of data only number and weights count: paths may be a node's own, and
/// check_same_data() compares what is there. Collective: one small reduction when all are alike.
void check_same_config(const Communicator& communicator, const RunConfig& config);

/// The same for the data behind `key`, by SampleSource::fingerprint(). Collective.
void check_same_data(const Communicator& communicator, const std::string& key,
                     const std::string& fingerprint);

}  // namespace deltaport::train
