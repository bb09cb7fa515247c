// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace deltaport {

/// JSON schema (draft 2020-12) of the YAML files, for editors and CI. Ends with a newline.
std::string json_schema();

/// Every key with type, unit, default, range and meaning, for `--help`.
std::string key_reference();

/// Dotted paths of all keys, in the order of the schema.
std::vector<std::string> key_paths();

}  // namespace deltaport
