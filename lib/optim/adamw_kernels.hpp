// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <type_traits>

#include "deltaport/core/dtype.hpp"
#include "deltaport/core/parallel.hpp"

namespace deltaport::optim {

/// Parameters start at multiples of this many elements, so one flag per block says whether weight decay
/// applies.
inline constexpr std::int64_t block_elements = 64;

template <class Scalars>
struct SetRate {
  Scalars* scalars;
  double lr;
  KOKKOS_FUNCTION void operator()(std::int64_t) const { scalars->lr = lr; }
};

/// Everything that follows from the norm and the count of updates, in double, once per step.
template <class Scalars>
struct PrepareStep {
  Scalars* scalars;
  const double* norm;
  double beta1;
  double beta2;
  double weight_decay;
  double grad_clip;

  KOKKOS_FUNCTION void operator()(std::int64_t) const {
    const double n = norm[0];
    if (!Kokkos::isfinite(n)) {
      scalars->skip = 1.0;
      return;
    }
    scalars->skip = 0.0;
    scalars->updates += 1.0;
    const double t = scalars->updates;
    const double coefficient = grad_clip / (n + 1e-6);
    scalars->gradient_scale = grad_clip > 0.0 && coefficient < 1.0 ? coefficient : 1.0;
    scalars->step_size = scalars->lr / (1.0 - Kokkos::pow(beta1, t));
    scalars->root_bias = 1.0 / Kokkos::sqrt(1.0 - Kokkos::pow(beta2, t));
    scalars->decay_rate = scalars->lr * weight_decay;
  }
};

/// The update itself: index = block of 64 elements on hosts (a loop that vectorises), one element on devices
/// (coalesced). Where T is not the type of the masters, the same pass rounds the new masters to the values,
/// as far as there are any.
template <class T, class Scalars>
struct AdamWUpdate {
  using State = Accumulate<T>;
  static constexpr bool rounds = !std::is_same_v<T, State>;
  const Scalars* scalars;
  State* masters;
  State* exp_avg;
  State* exp_avg_sq;
  const State* gradients;
  T* values;
  std::int64_t values_size;  // a multiple of block_elements
  const std::uint8_t* decay_flags;
  State beta1;
  State one_minus_beta1;
  State beta2;
  State one_minus_beta2;
  State eps;

  struct Factors {
    State gradient_scale;
    State step_size;
    State root_bias;
    State decay_rate;
  };

  /// Returns the new master.
  KOKKOS_INLINE_FUNCTION State one(std::int64_t i, const Factors& f) const {
    const State g = f.gradient_scale * gradients[i];
    const State m = beta1 * exp_avg[i] + one_minus_beta1 * g;
    const State v = beta2 * exp_avg_sq[i] + one_minus_beta2 * (g * g);
    const State w = masters[i];
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    // The small terms first: 1 - lr weight_decay would lose most of its digits in float.
    const State updated = w - (f.step_size * m / (Kokkos::sqrt(v) * f.root_bias + eps) + f.decay_rate * w);
    masters[i] = updated;
    return updated;
  }

  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    if (scalars->skip != 0.0) return;
    const std::int64_t block = runs_on_host ? index : index / block_elements;
    const Factors f{static_cast<State>(scalars->gradient_scale), static_cast<State>(scalars->step_size),
                    static_cast<State>(scalars->root_bias),
                    decay_flags[block] == 1 ? static_cast<State>(scalars->decay_rate) : State(0)};
    const bool has_values = rounds && block * block_elements < values_size;
    if constexpr (runs_on_host) {
      const std::int64_t begin = index * block_elements;
      if (has_values) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < begin + block_elements; ++i) values[i] = static_cast<T>(one(i, f));
      } else {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < begin + block_elements; ++i) one(i, f);
      }
    } else {
      const State updated = one(index, f);
      if (has_values) values[index] = static_cast<T>(updated);
    }
  }
};

}  // namespace deltaport::optim
