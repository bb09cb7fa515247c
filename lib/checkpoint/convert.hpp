// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "deltaport/checkpoint/safetensors.hpp"
#include "deltaport/core/dtype.hpp"

namespace deltaport {

/// Turns n elements of raw file bytes (any alignment) into T. Returns the index of the first value that T
/// cannot hold, or -1.
template <class T>
using FileConversion = std::int64_t (*)(const std::byte* raw, std::int64_t n, T* to);

/// The conversion from `dtype` to T, or nullptr where there is none: floats become floats, integers become
/// integers.
template <class T>
FileConversion<T> file_conversion(FileDtype dtype);

}  // namespace deltaport
