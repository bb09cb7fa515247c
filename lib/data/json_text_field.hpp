// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace deltaport {

/// Takes the string field `field` out of the JSON object in `line`. Returns what is wrong, or nothing.
std::string json_text_field(std::string_view line, const std::string& field, std::string& text);

}  // namespace deltaport
