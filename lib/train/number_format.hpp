// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace deltaport::train {

/// std::printf's format for one value.
std::string formatted(const char* format, double value);
/// "12,345"
std::string with_thousands(std::int64_t value);
/// "412.6 ms", "3.21 s"
std::string step_time(double seconds);
/// "38s", "6m03s", "2h05m", "3d04h"; "--" when negative or not finite
std::string duration(double seconds);
/// Bytes as GiB with two digits, without the unit: "0.52".
std::string gib(std::int64_t bytes);
/// "1.23 M": three digits with k, M, G, T.
std::string with_si_prefix(double value);

}  // namespace deltaport::train
