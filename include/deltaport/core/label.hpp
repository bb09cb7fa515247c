// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace deltaport {

/// Label of a token that takes no part in the loss.
inline constexpr std::int32_t ignored_label = -100;

}  // namespace deltaport
