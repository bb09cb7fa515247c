// SPDX-License-Identifier: Apache-2.0
// The cuda implementation: allocates results and workspace, fills in the kernels' arguments, enqueues them. Kept for
// backward are the inputs, and what the preparation made of them if asked for; its kernels compute the rest again.
#include "recurrence/cuda/adapter.hpp"

#include "recurrence/cuda/device.hpp"
#include "recurrence/cuda/gdn.hpp"

namespace deltaport::recurrence::cuda {

bool available() {
  static const bool runs = device_runs_kernels();
  return runs;
}
bool supports(Rule, const Extents& x, Dtype dtype, const Options& options) {
  return (dtype == Dtype::bf16 || dtype == Dtype::f16) && options.chunk_size == 64 && x.key_dim <= 128 &&
         x.key_dim % 8 == 0 && x.value_dim % 8 == 0;
}
bool supports_step(Rule, const Extents&, Dtype, const Options&) {
  return false;
}
std::string_view limits() {
  return "T = bfloat16 or float16, K <= 128 and V multiples of 8, chunk_size = 64, and no single steps";
}

Sizes sizes_of(const Extents& x) {
  Sizes sizes;
  sizes.batch = x.batch;
  sizes.tokens = x.tokens;
  sizes.sequences = static_cast<int>(x.sequences);
  sizes.key_heads = x.key_heads;
  sizes.value_heads = x.value_heads;
  sizes.key_dim = x.key_dim;
  sizes.value_dim = x.value_dim;
  sizes.cu_seqlens = x.cu_seqlens;
  return sizes;
}

Activations activations_of(const Options& options) {
  Activations a;
  a.scale = static_cast<float>(options.scale);
  a.l2_norm = options.qk_norm == QkNorm::l2;
  a.gate = options.gate == GateActivation::softplus        ? Gate::softplus
           : options.gate == GateActivation::lower_bounded ? Gate::lower_bounded
                                                           : Gate::log_decay;
  a.gate_lower_bound = static_cast<float>(options.gate_lower_bound);
  a.beta = options.beta == BetaActivation::sigmoid           ? Beta::sigmoid
           : options.beta == BetaActivation::doubled_sigmoid ? Beta::doubled_sigmoid
                                                             : Beta::plain;
  a.write_sigmoid = options.write_gate == WriteGate::sigmoid;
  return a;
}

namespace {

template <class T>
GdnForward arguments_of(const Extents& x, const GdnInputs<T>& in, const Options& options) {
  GdnForward a;
  a.sizes = sizes_of(x);
  a.activations = activations_of(options, in);
  a.element = element_of<T>();
  a.q = in.q.data();
  a.k = in.k.data();
  a.v = in.v.data();
  a.g = in.g.data();
  a.beta = in.beta.data();
  a.raw_gate = in.raw_gate.data();
  a.raw_beta = in.raw_beta.data();
  a.initial_state = in.initial_state.data();
  return a;
}

}  // namespace

template <class T>
ForwardResult<GdnSaved<T>, T> forward(Runtime& runtime, const Extents& x, const GdnInputs<T>& inputs,
                                      const Options& options) {
  if constexpr (!is_half<T>) {
    no_such_type();
  } else {
    const auto in = aligned_inputs(runtime, inputs);
    auto result = allocate_results<GdnSaved<T>, T>(runtime, x, options);
    GdnForward a = arguments_of(x, in, options);
    a.o = result.o.data();
    a.final_state = result.final_state.data();
    result.saved.prepared = allocate_prepared<T>(runtime, options, a);
    a.prepared = result.saved.prepared.data();
    enqueue(runtime, "gdn_forward", a, [](const GdnForward& arguments, void* workspace, cudaStream_t stream) {
      return forward(arguments, workspace, stream);
    });
    return result;
  }
}

template <class T>
GdnGradients<T> backward(Runtime& runtime, const Extents& x, const GdnSaved<T>& saved, const Tensor<T>& d_o,
                         const Tensor<Accumulate<T>>& d_final_state) {
  if constexpr (!is_half<T>) {
    no_such_type();
  } else {
    const auto in = aligned_inputs(runtime, saved.inputs);
    const auto aligned_d_o = aligned(runtime, d_o);
    const auto aligned_d_state = aligned(runtime, d_final_state);
    GdnGradients<T> out;
    allocate_gradients(runtime, in, out);
    out.dbeta = like(runtime, "recurrence dbeta", in.beta);
    out.d_raw_beta = like(runtime, "recurrence d_raw_beta", in.raw_beta);
    GdnBackward a;
    a.forward = arguments_of(x, in, saved.options);
    const auto prepared = aligned_prepared(runtime, "gdn_backward", saved.prepared, a.forward);
    a.forward.prepared = prepared.data();
    a.d_o = aligned_d_o.data();
    a.d_final_state = aligned_d_state.data();
    set_gradients(a, out);
    a.dbeta = out.dbeta.data();
    a.d_raw_beta = out.d_raw_beta.data();
    enqueue(runtime, "gdn_backward", a,
            [](const GdnBackward& arguments, void* workspace, cudaStream_t stream) {
              return backward(arguments, workspace, stream);
            });
    return out;
  }
}

// supports_step() sends them elsewhere.
template <class T>
Tensor<T> step(Runtime&, const Extents&, const GdnInputs<T>&, const States<T>&, const Options&) {
  throw Error("recurrence: the cuda implementation has no single step");
}
template <class T>
Tensor<T> step(Runtime&, const Extents&, const Gdn2Inputs<T>&, const States<T>&, const Options&) {
  throw Error("recurrence: the cuda implementation has no single step");
}

#define DELTAPORT_INSTANTIATE(T)                                                                       \
  template ForwardResult<GdnSaved<T>, T> forward<T>(Runtime&, const Extents&, const GdnInputs<T>&,     \
                                                    const Options&);                                   \
  template GdnGradients<T> backward<T>(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>&, \
                                       const Tensor<float>&);                                          \
  template Tensor<T> step<T>(Runtime&, const Extents&, const GdnInputs<T>&, const States<T>&,          \
                             const Options&);                                                          \
  template Tensor<T> step<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&, const States<T>&,         \
                             const Options&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence::cuda
