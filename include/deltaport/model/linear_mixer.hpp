// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/model/continuation.hpp"
#include "deltaport/model/parameters.hpp"
#include "deltaport/model/qkv_conv.hpp"
#include "deltaport/recurrence/recurrence.hpp"

namespace deltaport {

/// What becomes of the gated norm's output, which the output projection's weight gradient needs: backward computes it
/// again in the pass that it makes anyway, or forward saves it.
enum class NormOutput { recompute, save };
/// What becomes of the recurrence's inputs (q, k, v and gates): forward saves them, or backward computes all of them, or
/// only GDN2's gates, again from the projections, which it needs anyway. The gates are four sevenths of GDN2's bytes in
/// bfloat16 and one element-wise pass; GDN's are two numbers per head and are computed again only with all the rest.
enum class CoreInputs { save, recompute_gates, recompute };

/// What becomes of what the recurrence makes of each chunk before the state comes in: backward makes it again, or forward
/// saves it (recurrence::Keep::preparation).
enum class Preparation { recompute, save };

/// What one linear mixer remembers of N sequences between tokens. Zeros at the start of a document.
template <class T>
struct LinearDecodeState {
  Tensor<T> conv;                   ///< [N, 2 H K + HV V, W - 1], oldest token first
  Tensor<Accumulate<T>> recurrent;  ///< [N, HV, K, V]
};

/// What GDN and GDN2 mixers have in common:
///   [qkv | z | gates] = x P^T;  q, k, v = unit length or plain of silu(conv(qkv));
///   y = (w norm(recurrence(q, k, v, gates)) silu(z)) O^T
/// P is one fused block of parameters, so one product serves all projections. Matrices start as N(0,
/// initializer_range^2), the convolution as N(0, 1 / (3 W)), the norm's weight as ones. All work is enqueued
/// on the compute stream. In training mode forward saves: x, the lengths, the recurrence's tensors (group
/// "gdn_core_attn"; without those of its inputs that backward computes again), and (group "norm_out") the projections, the recurrence's output, the norm's statistics and, if
/// asked for, its output. Wrong shapes throw ShapeError.
template <class T>
class LinearMixer {
 public:
  virtual ~LinearMixer() = default;
  LinearMixer(const LinearMixer&) = delete;
  LinearMixer& operator=(const LinearMixer&) = delete;

  /// x [T, D] -> [T, D]. A document's first tokens see zeros before them.
  Tensor<T> forward(Context& context, const Tensor<T>& x, const Sequences& sequences);
  /// dy [T, D] -> dx; adds to the parameters' gradients.
  Tensor<T> backward(Context& context, const Tensor<T>& dy, const Sequences& sequences);

  /// The state of N sequences before their first token.
  LinearDecodeState<T> make_state(Runtime& runtime, std::int64_t count) const;
  /// One token of each of N sequences, x [N, D] -> [N, D]; moves `state` on in place.
  Tensor<T> step(Runtime& runtime, const Tensor<T>& x, const LinearDecodeState<T>& state);
  /// The T tokens of a run, x [T, D] -> [T, D], as forward() has them in the whole documents; moves the state
  /// of the run's sequences on in place.
  Tensor<T> prefill(Runtime& runtime, const Tensor<T>& x, const Continuation& run,
                    const LinearDecodeState<T>& state);

 protected:
  /// A gate's projection "<prefix>.in_proj_<name>.weight" [rows, D].
  struct GateProjection {
    std::string name;
    std::int64_t rows;
  };
  /// Declares the parameters that both mixers have; the derived class declares A_log and dt_bias.
  LinearMixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
              recurrence::Implementation implementation, NormOutput norm_output, CoreInputs core_inputs,
              Preparation preparation, const std::vector<GateProjection>& gates);

  /// Columns of gate i in a tensor shaped like the projections.
  ColumnSlice<T> gate(std::size_t i, const Tensor<T>& projections) const;
  const QkvShape& shape() const { return shape_; }
  const std::string& prefix() const { return prefix_; }
  recurrence::Options options(const Context& context) const;
  CoreInputs core_inputs_kept() const { return core_inputs_; }
  /// q, k, v and their lengths from the projections: in forward, and in backward where it computes them again.
  QkvConvResult<T> convolved_qkv(Runtime& runtime, const Tensor<T>& projections,
                                 const Sequences& sequences) const;

  struct CoreGradients {
    Tensor<T> dq, dk, dv;
  };

 private:
  /// Gates and recurrence; saves what its backward takes. `qkv` is given up as soon as the recurrence has it.
  virtual Tensor<T> core_forward(Context& context, const Tensor<T>& projections, QkvConvResult<T> qkv,
                                 const Sequences& sequences) = 0;
  /// Writes the gates' columns of `d_projections`.
  virtual CoreGradients core_backward(Context& context, const Tensor<T>& projections, const Tensor<T>& d_o,
                                      const Sequences& sequences, const Tensor<T>& d_projections) = 0;
  virtual Tensor<T> core_step(Runtime& runtime, const Tensor<T>& projections, const QkvConvResult<T>& qkv,
                              const Tensor<Accumulate<T>>& state) = 0;
  /// Gates and recurrence from `state`, which is moved on in place; saves nothing.
  virtual Tensor<T> core_prefill(Context& context, const Tensor<T>& projections, const QkvConvResult<T>& qkv,
                                 const Sequences& sequences, const Tensor<Accumulate<T>>& state) = 0;

  ColumnSlice<T> qkv(const Tensor<T>& projections) const { return {projections, 0, shape_.channels()}; }
  ColumnSlice<T> z(const Tensor<T>& projections) const {
    return {projections, shape_.channels(), shape_.values()};
  }
  Tensor<T> project(Runtime& runtime, const Tensor<T>& x) const;
  Tensor<T> project_out(Runtime& runtime, const Tensor<T>& y) const;
  void validate(const char* what, const Tensor<T>& x) const;

  std::string prefix_;
  QkvShape shape_;
  std::int64_t hidden_;
  std::int64_t conv_kernel_;
  int chunk_size_;
  double eps_;
  recurrence::Implementation implementation_;
  NormOutput norm_output_;
  CoreInputs core_inputs_;
  Preparation preparation_;
  std::vector<GateProjection> gates_;
  std::int64_t width_;  // columns of the projections
  Parameter<T> in_proj_, conv_, norm_, out_proj_;
};

}  // namespace deltaport
