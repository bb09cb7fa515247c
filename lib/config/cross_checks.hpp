// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"

namespace deltaport::config {

/// Receives a broken rule: the keys involved, the most telling first, and the text.
using ReportRule = std::function<void(const std::vector<std::string>& paths, const std::string& message)>;

/// The rules between keys. Each key alone must be in its range already, except those for which `usable` says
/// no: rules that involve such a key are skipped.
void check_rules(const RunConfig& config, const std::function<bool(const std::string&)>& usable,
                 const ReportRule& report);

}  // namespace deltaport::config
