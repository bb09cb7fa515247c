// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport {

namespace {

struct DtypeRow {
  FileDtype dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<DtypeRow, 22> dtype_table = {{
    {FileDtype::boolean, "BOOL", 8},
    {FileDtype::f4, "F4", 4},
    {FileDtype::f6_e2m3, "F6_E2M3", 6},
    {FileDtype::f6_e3m2, "F6_E3M2", 6},
    {FileDtype::u8, "U8", 8},
    {FileDtype::i8, "I8", 8},
    {FileDtype::f8_e5m2, "F8_E5M2", 8},
    {FileDtype::f8_e4m3, "F8_E4M3", 8},
    {FileDtype::f8_e8m0, "F8_E8M0", 8},
    {FileDtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {FileDtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {FileDtype::i16, "I16", 16},
    {FileDtype::u16, "U16", 16},
    {FileDtype::f16, "F16", 16},
    {FileDtype::bf16, "BF16", 16},
    {FileDtype::i32, "I32", 32},
    {FileDtype::u32, "U32", 32},
    {FileDtype::f32, "F32", 32},
    {FileDtype::c64, "C64", 64},
    {FileDtype::f64, "F64", 64},
    {FileDtype::i64, "I64", 64},
    {FileDtype::u64, "U64", 64},
}};

constexpr bool table_follows_enum() {
  for (std::size_t i = 0; i < dtype_table.size(); ++i)
    if (static_cast<std::size_t>(dtype_table[i].dtype) != i) return false;
  return true;
}
static_assert(table_follows_enum());

}  // namespace

int bits_of(FileDtype dtype) {
  return dtype_table.at(static_cast<std::size_t>(dtype)).bits;
}

std::string_view name_of(FileDtype dtype) {
  return dtype_table.at(static_cast<std::size_t>(dtype)).name;
}

std::optional<FileDtype> parse_file_dtype(std::string_view name) {
  for (const DtypeRow& row : dtype_table)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::int64_t TensorEntry::elements() const {
  std::int64_t product = 1;
  for (std::int64_t extent : shape) product *= extent;
  return product;
}

Shape TensorEntry::tensor_shape() const {
  DELTAPORT_VALIDATE(shape.size() <= static_cast<std::size_t>(Shape::max_rank), ShapeError, "tensor \"", name,
                     "\" ", shape_string(), ": more than ", Shape::max_rank, " dimensions");
  Shape out;
  for (std::int64_t extent : shape) out.push_back(extent);
  return out;
}

std::string TensorEntry::shape_string() const {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace deltaport
