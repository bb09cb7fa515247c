// SPDX-License-Identifier: Apache-2.0
#include "deltaport/config/names.hpp"

namespace deltaport {
namespace {
constexpr std::string_view layer_types[] = {"gdn", "gdn2", "attention"};
constexpr std::string_view precisions[] = {"float32", "bfloat16"};
constexpr std::string_view on_nonfinite[] = {"stop", "skip"};
constexpr std::string_view schedules[] = {"constant", "cosine", "wsd"};
constexpr std::string_view recurrences[] = {"auto", "reference", "portable", "host", "cuda"};
constexpr std::string_view attentions[] = {"auto", "portable", "cudnn"};
constexpr std::string_view graph_scopes[] = {"none", "attention", "layer", "step"};
constexpr std::string_view capture_failures[] = {"error", "eager"};
constexpr std::string_view core_inputs_again[] = {"none", "gates", "all"};
constexpr std::string_view offload_scopes[] = {"gdn_core_attn", "norm_out", "attn_core", "mlp"};
}  // namespace

template <>
std::span<const std::string_view> names_of<LayerType>() {
  return layer_types;
}
template <>
std::span<const std::string_view> names_of<Precision>() {
  return precisions;
}
template <>
std::span<const std::string_view> names_of<OnNonFinite>() {
  return on_nonfinite;
}
template <>
std::span<const std::string_view> names_of<ScheduleName>() {
  return schedules;
}
template <>
std::span<const std::string_view> names_of<RecurrenceName>() {
  return recurrences;
}
template <>
std::span<const std::string_view> names_of<AttentionName>() {
  return attentions;
}
template <>
std::span<const std::string_view> names_of<GraphScope>() {
  return graph_scopes;
}
template <>
std::span<const std::string_view> names_of<OnCaptureFailure>() {
  return capture_failures;
}
template <>
std::span<const std::string_view> names_of<CoreInputsAgain>() {
  return core_inputs_again;
}
template <>
std::span<const std::string_view> names_of<OffloadScope>() {
  return offload_scopes;
}

}  // namespace deltaport
