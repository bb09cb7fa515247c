// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace deltaport::config {

/// Values of model.preset; "none" first.
std::span<const std::string_view> preset_names();

/// The keys that a preset sets, as YAML; empty for "none" and for unknown names.
std::string preset_yaml(std::string_view name);

}  // namespace deltaport::config
