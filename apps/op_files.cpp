// SPDX-License-Identifier: Apache-2.0
#include "op_files.hpp"

#include <algorithm>
#include <limits>

namespace deltaport::app {

OpInput::OpInput(const std::string& path, const std::set<std::string>& known)
    : reader_(path, FileOrigin::user) {
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  for (const TensorEntry& tensor : reader_.tensors())
    DELTAPORT_VALIDATE(known.count(tensor.name), OpError, path, ": unknown tensor \"", tensor.name,
                       "\"; with these options this operator takes ", names);
}

Dtype OpInput::dtype() const {
  switch (reader_.at("q").dtype) {
    case FileDtype::f64:
      return Dtype::f64;
    case FileDtype::bf16:
      return Dtype::bf16;
    case FileDtype::f16:
      return Dtype::f16;
    default:
      return Dtype::f32;
  }
}

template <class X>
Tensor<X> OpInput::load(Runtime& runtime, const char* name, Need need) const {
  const TensorEntry* entry = need == Need::required ? &reader_.at(name) : reader_.find(name);
  if (entry == nullptr) return {};
  const FileDtype d = entry->dtype;
  DELTAPORT_VALIDATE(
      d == FileDtype::f32 || d == FileDtype::f64 || d == FileDtype::f16 || d == FileDtype::bf16, OpError,
      reader_.path().string(), ": tensor \"", name, "\" is ", name_of(d), ", expected F64, F32, BF16 or F16");
  DELTAPORT_VALIDATE(entry->elements() > 0, OpError, reader_.path().string(), ": tensor \"", name, "\" ",
                     entry->shape_string(), " is empty");
  return from_vector<X>(runtime.compute(), runtime.arena(), name, entry->tensor_shape(),
                        reader_.read<X>(name));
}
template Tensor<double> OpInput::load<double>(Runtime&, const char*, Need) const;
template Tensor<float> OpInput::load<float>(Runtime&, const char*, Need) const;
template Tensor<bfloat16> OpInput::load<bfloat16>(Runtime&, const char*, Need) const;
template Tensor<float16> OpInput::load<float16>(Runtime&, const char*, Need) const;

Tensor<std::int32_t> OpInput::load_boundaries(Runtime& runtime, std::int64_t tokens) const {
  const TensorEntry* entry = reader_.find("cu_seqlens");
  if (entry == nullptr) return {};
  DELTAPORT_VALIDATE(entry->dtype == FileDtype::i32 || entry->dtype == FileDtype::i64, OpError,
                     reader_.path().string(), ": tensor \"cu_seqlens\" is ", name_of(entry->dtype),
                     ", expected I32 or I64");
  DELTAPORT_VALIDATE(entry->shape.size() == 1 && entry->elements() >= 2, OpError, reader_.path().string(),
                     ": tensor \"cu_seqlens\" is ", entry->shape_string(), ", expected [N + 1] with N >= 1");
  const auto values = reader_.read<std::int64_t>("cu_seqlens");
  const std::int64_t limit = std::min<std::int64_t>(tokens, std::numeric_limits<std::int32_t>::max());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool right = i == 0 ? values[0] == 0 : values[i] >= values[i - 1] && values[i] <= limit;
    DELTAPORT_VALIDATE(right, OpError, reader_.path().string(), ": cu_seqlens[", i, "] is ", values[i],
                       i == 0 ? "" : concat(" after ", values[i - 1]),
                       "; they must start at 0, never fall, and end at T = ", tokens, " or before");
  }
  return from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "cu_seqlens",
                                   {static_cast<std::int64_t>(values.size())},
                                   {values.begin(), values.end()});
}

}  // namespace deltaport::app
