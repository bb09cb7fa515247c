// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace deltaport {

enum class Verify { no, yes };

struct InspectOptions {
  std::string prefix;
  std::int64_t documents = 3;  ///< decoded from the front
  std::string tokenizer = {};  ///< tokenizer.json or its folder, for token files that were made with one
  Verify verify = Verify::no;  ///< read the whole .bin: checksum and largest id against the side-car
};

/// Header, counts, histogram of document lengths and the first documents, as text for a terminal.
std::string inspect_as_text(const InspectOptions& options);
/// The same as one JSON object.
std::string inspect_as_json(const InspectOptions& options);

}  // namespace deltaport
