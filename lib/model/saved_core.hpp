// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "deltaport/core/context.hpp"

/// How the mixers hand tensors to the recurrence and keep what it saves.
namespace deltaport::core {

/// Name of the saved tensors' group: the unit that an offload schedule may move.
inline constexpr std::string_view saved_group = "gdn_core_attn";

/// Saves all tensors, also undefined ones, as one group.
template <class... Tensors>
void save(SavedTensors& saved, const Tensors&... tensors) {
  saved.open(saved_group);
  (saved.save(tensors), ...);
  saved.commit();
}

/// Takes back what save() kept, given the same order.
inline void take(SavedTensors&) {}
template <class T, class... Rest>
void take(SavedTensors& saved, Tensor<T>& first, Rest&... rest) {
  take(saved, rest...);
  first = saved.take<T>();
}

/// Outputs of `forward`, a recurrence, over a run that goes on from `state` [N, HV, K, V], which it moves on in place; all
/// on the compute stream.
template <class State, class Inputs, class Options, class Forward>
auto forward_from(Context& context, const State& state, Inputs inputs, Options options,
                  const Forward& forward) {
  inputs.initial_state = state;
  options.output_final_state = true;
  const auto result = forward(context.runtime, inputs, options);
  copy(context.exec(), state, result.final_state);
  return result.o;
}

/// [T, ...] -> [1, T, ...]: one flat run of tokens.
template <class T>
Tensor<T> add_batch(const Tensor<T>& x) {
  Shape shape{1};
  for (int i = 0; i < x.rank(); ++i) shape.push_back(x.extent(i));
  return x.reshape(shape);
}

/// [N, ...] -> [N, 1, ...]: one token of each sequence.
template <class T>
Tensor<T> add_time(const Tensor<T>& x) {
  Shape shape{x.extent(0), 1};
  for (int i = 1; i < x.rank(); ++i) shape.push_back(x.extent(i));
  return x.reshape(shape);
}

}  // namespace deltaport::core
