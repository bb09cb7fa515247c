// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "deltaport/recurrence/recurrence.hpp"

#include "recurrence/extents.hpp"

/// Turns any call into one that every implementation understands, and its gradients back: halves become
/// float32, q and k are normalised, gates are activated. What needs no change is shared, not copied.
namespace deltaport::recurrence {

/// The type that a call of T is computed in.
template <class T>
using Plain = std::conditional_t<is_half<T>, float, T>;

/// The same call with plain options. Rows that no sequence covers hold anything.
template <class T>
GdnInputs<Plain<T>> prepare(Runtime& runtime, const Extents& extents, const GdnInputs<T>& inputs,
                            const Options& options);
template <class T>
Gdn2Inputs<Plain<T>> prepare(Runtime& runtime, const Extents& extents, const Gdn2Inputs<T>& inputs,
                             const Options& options);
/// `options` without what prepare() has done.
Options plain_options(Options options);

/// Gradients of `inputs` as they were given, from those of prepare(inputs). Sums over tokens and channels are
/// taken in float64 over blocks of tokens in a fixed order; halves are rounded here, once.
template <class T>
GdnGradients<T> finish(Runtime& runtime, const Extents& extents, const GdnInputs<T>& inputs,
                       const Options& options, const GdnGradients<Plain<T>>& gradients);
template <class T>
Gdn2Gradients<T> finish(Runtime& runtime, const Extents& extents, const Gdn2Inputs<T>& inputs,
                        const Options& options, const Gdn2Gradients<Plain<T>>& gradients);

/// The same elements as To; shared when that is X.
template <class To, class X>
Tensor<To> converted(Runtime& runtime, const char* name, const Tensor<X>& x);

}  // namespace deltaport::recurrence
