// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "deltaport/core/enqueue.hpp"
#include "recurrence/cuda/arguments.hpp"
#include "recurrence/implementations.hpp"

/// What both rules need to call the kernels with tensors.
namespace deltaport::recurrence::cuda {

[[noreturn]] inline void no_such_type() {
  throw Error("recurrence: the cuda implementation was given a type that it does not take");
}

template <class T>
constexpr Element element_of() {
  return std::is_same_v<T, bfloat16> ? Element::bfloat16 : Element::float16;
}

Sizes sizes_of(const Extents& x);

/// Activations of `options`, without A_log and dt_bias.
Activations activations_of(const Options& options);

template <class Inputs>
Activations activations_of(const Options& options, const Inputs& inputs) {
  Activations a = activations_of(options);
  a.a_log = inputs.A_log.data();
  a.dt_bias = inputs.dt_bias.data();
  return a;
}

/// The tensor itself, or a copy where it does not start at a multiple of the 16 bytes that the kernels read at once (rows
/// of a larger tensor may). The copy may go as soon as the kernels are enqueued.
template <class X>
Tensor<X> aligned(Runtime& runtime, const Tensor<X>& x) {
  if (reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0) return x;
  auto copied = runtime.allocate<X>("recurrence aligned input", x.shape());
  copy(runtime.compute(), copied, x);
  return copied;
}
template <class Inputs>
Inputs aligned_inputs(Runtime& runtime, Inputs inputs) {
  inputs.q = aligned(runtime, inputs.q);
  inputs.k = aligned(runtime, inputs.k);
  inputs.v = aligned(runtime, inputs.v);
  inputs.g = aligned(runtime, inputs.g);
  inputs.raw_gate = aligned(runtime, inputs.raw_gate);
  inputs.initial_state = aligned(runtime, inputs.initial_state);
  return inputs;
}

/// An uninitialised tensor like x; empty where x is.
template <class X>
Tensor<X> like(Runtime& runtime, const char* name, const Tensor<X>& x) {
  return x.defined() ? runtime.allocate<X>(name, x.shape()) : Tensor<X>{};
}

/// o and, when asked for, the final state.
template <class Saved, class T>
ForwardResult<Saved, T> allocate_results(Runtime& runtime, const Extents& x, const Options& options) {
  ForwardResult<Saved, T> result;
  result.o = runtime.allocate<T>("recurrence o", {x.batch, x.tokens, x.value_heads, x.value_dim});
  if (options.output_final_state)
    result.final_state =
        runtime.allocate<float>("recurrence state", {x.sequences, x.value_heads, x.key_dim, x.value_dim});
  return result;
}

/// Memory for what the preparation leaves, where options ask for it.
template <class T, class Arguments>
Tensor<T> allocate_prepared(Runtime& runtime, const Options& options, const Arguments& arguments) {
  if (!options.save_for_backward || options.keep != Keep::preparation) return {};
  return runtime.allocate<T>("recurrence prepared",
                             {static_cast<std::int64_t>(prepared_bytes(arguments) / sizeof(T))});
}
/// What forward left there, where backward can read it. Throws ShapeError when it belongs to another call.
template <class T, class Arguments>
Tensor<T> aligned_prepared(Runtime& runtime, const char* operation, const Tensor<T>& prepared,
                           const Arguments& arguments) {
  if (!prepared.defined()) return {};
  const auto expected = static_cast<std::int64_t>(prepared_bytes(arguments) / sizeof(T));
  DELTAPORT_VALIDATE(prepared.rank() == 1 && prepared.size() == expected, ShapeError, operation,
                     ": saved.prepared has shape ", prepared.shape().str(), ", expected [", expected, "]");
  return aligned(runtime, prepared);
}

/// What the gradients of both rules have in common; those not computed stay empty.
template <class Gradients, class Inputs>
void allocate_gradients(Runtime& runtime, const Inputs& inputs, Gradients& out) {
  out.dq = like(runtime, "recurrence dq", inputs.q);
  out.dk = like(runtime, "recurrence dk", inputs.k);
  out.dv = like(runtime, "recurrence dv", inputs.v);
  out.dg = like(runtime, "recurrence dg", inputs.g);
  out.d_raw_gate = like(runtime, "recurrence d_raw_gate", inputs.raw_gate);
  out.dA_log = like(runtime, "recurrence dA_log", inputs.A_log);
  out.ddt_bias = like(runtime, "recurrence ddt_bias", inputs.dt_bias);
  out.dinitial_state = like(runtime, "recurrence dinitial_state", inputs.initial_state);
}

template <class Arguments, class Gradients>
void set_gradients(Arguments& arguments, const Gradients& out) {
  arguments.dq = out.dq.data();
  arguments.dk = out.dk.data();
  arguments.dv = out.dv.data();
  arguments.dg = out.dg.data();
  arguments.d_raw_gate = out.d_raw_gate.data();
  arguments.d_a_log = out.dA_log.data();
  arguments.d_dt_bias = out.ddt_bias.data();
  arguments.d_initial_state = out.dinitial_state.data();
}

/// Enqueues launch(arguments, workspace, stream) to the compute stream. The workspace returns to the arena at once: who
/// gets its memory next comes later in the stream. Throws DeviceError when CUDA refuses.
template <class Arguments, class Launch>
void enqueue(Runtime& runtime, const char* what, const Arguments& arguments, const Launch& launch) {
  constexpr std::size_t alignment = 1024;
  const auto workspace =
      runtime.arena().allocate("recurrence workspace", workspace_bytes(arguments) + alignment);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace->data());
  std::byte* const base = workspace->data() + (alignment - address % alignment) % alignment;
  deltaport::enqueue(what, [&] {
    const cudaError_t error = launch(arguments, base, runtime.compute().cuda_stream());
    DELTAPORT_VALIDATE(error == cudaSuccess, DeviceError, what, " on ", ExecutionSpace::name(), ": ",
                       cudaGetErrorString(error));
  });
}

}  // namespace deltaport::recurrence::cuda
