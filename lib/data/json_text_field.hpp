// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace deltaport {

/// Takes the string field `field` out of the JSON object (RFC 8259) in `line`, checking all of the line.
/// Strings are decoded in place, so no memory is needed beside the line itself; `text` points into it.
/// Returns what is wrong, or nothing.
std::string json_text_field(std::span<char> line, std::string_view field, std::string_view& text);

}  // namespace deltaport
