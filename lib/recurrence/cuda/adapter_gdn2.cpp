// SPDX-License-Identifier: Apache-2.0
// GDN2's part of the cuda implementation.
#include "recurrence/cuda/adapter.hpp"
#include "recurrence/cuda/gdn2.hpp"

namespace deltaport::recurrence::cuda {
namespace {

template <class T>
Gdn2Forward arguments_of(const Extents& x, const Gdn2Inputs<T>& in, const Options& options) {
  Gdn2Forward a;
  a.sizes = sizes_of(x);
  a.gate_heads = x.gate_heads;
  a.activations = activations_of(options, in);
  a.element = element_of<T>();
  a.q = in.q.data();
  a.k = in.k.data();
  a.v = in.v.data();
  a.b = in.b.data();
  a.w = in.w.data();
  a.g = in.g.data();
  a.raw_gate = in.raw_gate.data();
  a.initial_state = in.initial_state.data();
  return a;
}

template <class T>
Gdn2Inputs<T> all_aligned(Runtime& runtime, const Gdn2Inputs<T>& inputs) {
  auto in = aligned_inputs(runtime, inputs);
  in.b = aligned(runtime, in.b);
  in.w = aligned(runtime, in.w);
  return in;
}

}  // namespace

template <class T>
ForwardResult<Gdn2Saved<T>, T> forward(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& inputs,
                                       const Options& options) {
  if constexpr (!is_half<T>) {
    no_such_type();
  } else {
    const auto in = all_aligned(runtime, inputs);
    auto result = allocate_results<Gdn2Saved<T>, T>(runtime, x, options);
    Gdn2Forward a = arguments_of(x, in, options);
    a.o = result.o.data();
    a.final_state = result.final_state.data();
    result.saved.prepared = allocate_prepared<T>(runtime, options, a);
    a.prepared = result.saved.prepared.data();
    enqueue(runtime, "gdn2_forward", a,
            [](const Gdn2Forward& arguments, void* workspace, cudaStream_t stream) {
              return forward(arguments, workspace, stream);
            });
    return result;
  }
}

template <class T>
Gdn2Gradients<T> backward(Runtime& runtime, const Extents& x, const Gdn2Saved<T>& saved, const Tensor<T>& d_o,
                          const Tensor<Accumulate<T>>& d_final_state) {
  if constexpr (!is_half<T>) {
    no_such_type();
  } else {
    const auto in = all_aligned(runtime, saved.inputs);
    const auto aligned_d_o = aligned(runtime, d_o);
    const auto aligned_d_state = aligned(runtime, d_final_state);
    Gdn2Gradients<T> out;
    allocate_gradients(runtime, in, out);
    out.db = like(runtime, "recurrence db", in.b);
    out.dw = like(runtime, "recurrence dw", in.w);
    Gdn2Backward a;
    a.forward = arguments_of(x, in, saved.options);
    const auto prepared = aligned_prepared(runtime, "gdn2_backward", saved.prepared, a.forward);
    a.forward.prepared = prepared.data();
    a.d_o = aligned_d_o.data();
    a.d_final_state = aligned_d_state.data();
    set_gradients(a, out);
    a.db = out.db.data();
    a.dw = out.dw.data();
    enqueue(runtime, "gdn2_backward", a,
            [](const Gdn2Backward& arguments, void* workspace, cudaStream_t stream) {
              return backward(arguments, workspace, stream);
            });
    return out;
  }
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template ForwardResult<Gdn2Saved<T>, T> forward<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&,     \
                                                     const Options&);                                    \
  template Gdn2Gradients<T> backward<T>(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>&, \
                                        const Tensor<float>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence::cuda
