// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/model/gates.hpp"
#include "deltaport/model/linear_mixer.hpp"

namespace deltaport {

/// Token mixer with Gated DeltaNet 2, full-rank gates. Parameters under `prefix`:
///   in_proj_qkv.weight [2 H K + HV V, D], in_proj_z.weight [HV V, D], in_proj_f.weight [H K, D],
///   in_proj_b.weight [H K, D], in_proj_w.weight [HV V, D] (one fused block), conv1d.weight [2 H K + HV V, 1,
///   W], norm.weight [V], out_proj.weight [D, HV V], A_log [H], dt_bias [H K].
/// Only the matrices decay. A_log starts as log U(1, 16), dt_bias as the inverse softplus of exp U(log 0.001,
/// log 0.1).
template <class T>
class Gdn2Mixer final : public LinearMixer<T> {
 public:
  Gdn2Mixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
            recurrence::Implementation implementation = recurrence::Implementation::automatic,
            NormOutput norm_output = NormOutput::recompute,
            CoreInputs core_inputs = CoreInputs::recompute_gates,
            Preparation preparation = Preparation::recompute);

 private:
  using Base = LinearMixer<T>;
  recurrence::Gdn2Inputs<T> core_inputs(Runtime& runtime, const Tensor<T>& projections,
                                        const QkvConvResult<T>& qkv, const Sequences& sequences) const;
  Gdn2Gates<T> gates(Runtime& runtime, const Tensor<T>& projections) const;
  void add_gates(Runtime& runtime, const Tensor<T>& projections, recurrence::Gdn2Inputs<T>& inputs) const;
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
