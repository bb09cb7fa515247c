// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/model/linear_mixer.hpp"

namespace deltaport {

/// Token mixer with Gated DeltaNet, as in Qwen3.5. Parameters under `prefix`:
///   in_proj_qkv.weight [2 H K + HV V, D], in_proj_z.weight [HV V, D], in_proj_b.weight [HV, D],
///   in_proj_a.weight [HV, D] (one fused block), conv1d.weight [2 H K + HV V, 1, W], norm.weight [V],
///   out_proj.weight [D, HV V], A_log [HV], dt_bias [HV].
/// Only the matrices decay. A_log starts as log U(0.01, 16), dt_bias as ones.
template <class T>
class GdnMixer final : public LinearMixer<T> {
 public:
  GdnMixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
           recurrence::Implementation implementation = recurrence::Implementation::automatic,
           NormOutput norm_output = NormOutput::recompute,
           CoreInputs core_inputs = CoreInputs::recompute_gates,
           Preparation preparation = Preparation::recompute);

 private:
  using Base = LinearMixer<T>;
  recurrence::GdnInputs<T> core_inputs(Runtime& runtime, const Tensor<T>& projections,
                                       const QkvConvResult<T>& qkv, const Sequences& sequences) const;
  Tensor<T> core_forward(Context& context, const Tensor<T>& projections, QkvConvResult<T> qkv,
                         const Sequences& sequences) override;
  typename Base::CoreGradients core_backward(Context& context, const Tensor<T>& projections,
                                             const Tensor<T>& d_o, const Sequences& sequences,
                                             const Tensor<T>& d_projections) override;
  Tensor<T> core_step(Runtime& runtime, const Tensor<T>& projections, const QkvConvResult<T>& qkv,
                      const Tensor<Accumulate<T>>& state) override;
  Tensor<T> core_prefill(Context& context, const Tensor<T>& projections, const QkvConvResult<T>& qkv,
                         const Sequences& sequences, const Tensor<Accumulate<T>>& state) override;

  Parameter<T> a_log_, dt_bias_;
  recurrence::Options saved_options_;  // as forward resolved them; the same in every training step
};

}  // namespace deltaport
