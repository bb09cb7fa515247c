// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/activations.hpp"
#include "recurrence/implementations.hpp"

namespace deltaport::recurrence {

enum class Call { chunked, step };

/// `options` with scale and implementation resolved: `automatic` becomes the first that can do the call. Throws
/// ShapeError when the one asked for is not in this build or cannot do it.
Options resolve(const char* operation, Call call, Rule rule, const Extents& extents, Dtype dtype,
                Options options);

/// Whether the implementation takes a call of T as it came; otherwise prepare() it first.
template <class T>
bool takes_directly(const Options& options) {
  switch (options.implementation) {
    case Implementation::cuda:
      return true;
    case Implementation::host:
      return plain(options);
    default:
      return !is_half<T> && plain(options);
  }
}

}  // namespace deltaport::recurrence
