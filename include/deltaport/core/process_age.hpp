// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace deltaport {

/// Seconds since the operating system started this process, to about 10 ms: what a program did before main()
/// counts. Nothing where /proc does not tell.
std::optional<double> process_age_seconds();

}  // namespace deltaport
