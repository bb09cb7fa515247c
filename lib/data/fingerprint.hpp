// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"
#include "deltaport/data/sample_source.hpp"
#include "deltaport/data/token_file.hpp"

namespace deltaport {

/// PATH without its folder.
std::string base_name_of(const std::string& prefix);

/// What SampleSource::fingerprint() says; `sources` and `files` correspond and are already in base-name
/// order.
std::string fingerprint_of(const std::vector<DataSource>& sources, const std::vector<TokenFile>& files,
                           const SampleOptions& options);

}  // namespace deltaport
