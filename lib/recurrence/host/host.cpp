// SPDX-License-Identifier: Apache-2.0
// The host implementation: allocates results, fills in the call, runs it.
#include "recurrence/host/group.hpp"
#include "recurrence/host/run.hpp"
#include "recurrence/implementations.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::host {
namespace {

template <class Inputs>
void set_inputs(Call& call, const Inputs& in) {
  call.q = in.q.data();
  call.k = in.k.data();
  call.v = in.v.data();
  call.g = in.g.data();
  call.initial_state = in.initial_state.data();
}
template <class T>
void set_gates(Call& call, const GdnInputs<T>& in) {
  call.beta = in.beta.data();
}
template <class T>
void set_gates(Call& call, const Gdn2Inputs<T>& in) {
  call.b = in.b.data();
  call.w = in.w.data();
}

template <class T>
const Entry& entry_of(const GdnInputs<T>&) {
  return kernels().gdn[static_cast<int>(storage_of<T>())];
}
template <class T>
const Entry& entry_of(const Gdn2Inputs<T>&) {
  return kernels().gdn2[static_cast<int>(storage_of<T>())];
}

template <class T, class Saved, class Inputs>
ForwardResult<Saved, T> run_forward(Runtime& runtime, const Extents& x, const Inputs& inputs,
                                    const Options& options) {
  ForwardResult<Saved, T> result;
  result.o = runtime.allocate<T>("recurrence o", {x.batch, x.tokens, x.value_heads, x.value_dim});
  if (options.output_final_state)
    result.final_state =
        runtime.allocate<float>("recurrence state", {x.sequences, x.value_heads, x.key_dim, x.value_dim});
  Call call = call_of(x, options.scale);
  set_inputs(call, inputs);
  set_gates(call, inputs);
  call.o = result.o.data();
  call.final_state = result.final_state.data();
  run(runtime, x, entry_of(inputs), call, Pass::forward);
  zero_uncovered_rows(runtime.compute(), x, result.o);
  return result;
}

/// What both rules return, and the call that computes it.
template <class T, class Saved, class Gradients>
struct Backward {
  Gradients out;
  Call call;
  GroupSum<T> dq, dk;

  Backward(Runtime& runtime, const Extents& x, const Saved& saved, const Tensor<T>& d_o,
           const Tensor<float>& d_final_state)
      : call(call_of(x, saved.options.scale)),
        dq(runtime, "recurrence dq", x, x.key_heads, x.key_dim),
        dk(runtime, "recurrence dk", x, x.key_heads, x.key_dim) {
    set_inputs(call, saved.inputs);
    set_gates(call, saved.inputs);
    out.dv = runtime.allocate<T>("recurrence dv", saved.inputs.v.shape());
    if (saved.inputs.initial_state.defined())
      out.dinitial_state =
          runtime.allocate<float>("recurrence dinitial_state", saved.inputs.initial_state.shape());
    call.d_o = d_o.data();
    call.d_final_state = d_final_state.data();
    call.dq = dq.data();
    call.dk = dk.data();
    call.wide_keys = dq.is_wide();
    call.dv = out.dv.data();
    call.d_initial_state = out.dinitial_state.data();
  }
  void finish(const ExecutionSpace& exec, const Extents& x) {
    out.dq = dq.finish(exec, x);
    out.dk = dk.finish(exec, x);
    zero_uncovered_rows(exec, x, out.dv);
  }
};

}  // namespace

bool available() {
  return true;
}
bool supports(Rule, const Extents&, Dtype dtype, const Options& options) {
  return dtype != Dtype::f64 && options.chunk_size == chunk;
}
std::string_view limits() {
  return "T = bfloat16, float16 or float32 and chunk_size = 64";
}

template <class T>
ForwardResult<GdnSaved<T>, T> forward(Runtime& runtime, const Extents& x, const GdnInputs<T>& inputs,
                                      const Options& options) {
  return run_forward<T, GdnSaved<T>>(runtime, x, inputs, options);
}
template <class T>
ForwardResult<Gdn2Saved<T>, T> forward(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& inputs,
                                       const Options& options) {
  return run_forward<T, Gdn2Saved<T>>(runtime, x, inputs, options);
}

template <class T>
GdnGradients<T> backward(Runtime& runtime, const Extents& x, const GdnSaved<T>& saved, const Tensor<T>& d_o,
                         const Tensor<Accumulate<T>>& d_final_state) {
  Backward<T, GdnSaved<T>, GdnGradients<T>> pass(runtime, x, saved, d_o, d_final_state);
  auto& out = pass.out;
  out.dg = runtime.allocate<float>("recurrence dg", saved.inputs.g.shape());
  out.dbeta = runtime.allocate<float>("recurrence dbeta", saved.inputs.g.shape());
  pass.call.dg = out.dg.data();
  pass.call.dbeta = out.dbeta.data();
  run(runtime, x, entry_of(saved.inputs), pass.call, Pass::backward);
  pass.finish(runtime.compute(), x);
  zero_uncovered_rows(runtime.compute(), x, out.dg);
  zero_uncovered_rows(runtime.compute(), x, out.dbeta);
  return out;
}

template <class T>
Gdn2Gradients<T> backward(Runtime& runtime, const Extents& x, const Gdn2Saved<T>& saved, const Tensor<T>& d_o,
                          const Tensor<Accumulate<T>>& d_final_state) {
  Backward<T, Gdn2Saved<T>, Gdn2Gradients<T>> pass(runtime, x, saved, d_o, d_final_state);
  GroupSum<float> dg(runtime, "recurrence dg", x, x.gate_heads, x.key_dim);
  GroupSum<T> db(runtime, "recurrence db", x, x.gate_heads, x.key_dim);
  auto& out = pass.out;
  out.dw = runtime.allocate<T>("recurrence dw", saved.inputs.v.shape());
  pass.call.dg = static_cast<float*>(dg.data());
  pass.call.db = db.data();
  pass.call.wide_gates = db.is_wide();
  pass.call.dw = out.dw.data();
  run(runtime, x, entry_of(saved.inputs), pass.call, Pass::backward);
  pass.finish(runtime.compute(), x);
  out.dg = dg.finish(runtime.compute(), x);
  out.db = db.finish(runtime.compute(), x);
  zero_uncovered_rows(runtime.compute(), x, out.dw);
  return out;
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template ForwardResult<GdnSaved<T>, T> forward<T>(Runtime&, const Extents&, const GdnInputs<T>&,       \
                                                    const Options&);                                     \
  template ForwardResult<Gdn2Saved<T>, T> forward<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&,     \
                                                     const Options&);                                    \
  template GdnGradients<T> backward<T>(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>&,   \
                                       const Tensor<float>&);                                            \
  template Gdn2Gradients<T> backward<T>(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>&, \
                                        const Tensor<float>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence::host
