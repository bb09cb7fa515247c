// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"

/// What each implementation offers to the dispatcher: arguments are already checked, scale is resolved.
namespace deltaport::recurrence {

namespace reference {
template <class T>
ForwardResult<GdnSaved<T>, T> forward(Runtime&, const Extents&, const GdnInputs<T>&, const Options&);
template <class T>
ForwardResult<Gdn2Saved<T>, T> forward(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Options&);
template <class T>
GdnGradients<T> backward(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>& d_o,
                         const Tensor<Accumulate<T>>& d_final_state);
template <class T>
Gdn2Gradients<T> backward(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>& d_o,
                          const Tensor<Accumulate<T>>& d_final_state);
template <class T>
Tensor<T> step(Runtime&, const Extents&, const GdnInputs<T>&, const Tensor<Accumulate<T>>& state,
               double scale);
template <class T>
Tensor<T> step(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Tensor<Accumulate<T>>& state,
               double scale);
}  // namespace reference

namespace portable {
template <class T>
ForwardResult<GdnSaved<T>, T> forward(Runtime&, const Extents&, const GdnInputs<T>&, const Options&);
template <class T>
ForwardResult<Gdn2Saved<T>, T> forward(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Options&);
template <class T>
GdnGradients<T> backward(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>& d_o,
                         const Tensor<Accumulate<T>>& d_final_state);
template <class T>
Gdn2Gradients<T> backward(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>& d_o,
                          const Tensor<Accumulate<T>>& d_final_state);
}  // namespace portable

}  // namespace deltaport::recurrence
