// SPDX-License-Identifier: Apache-2.0
#include "data/text_unit.hpp"

#include "data/byte_source.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t range_bytes = std::int64_t{16} << 20;

TextFormat format_of(const std::string& path) {
  const std::string name = text_name_of(path);
  for (const char* ending : {".jsonl", ".ndjson", ".json"})
    if (name.ends_with(ending)) return TextFormat::jsonl;
  return TextFormat::plain;
}

}  // namespace

bool TextUnits::next(TextUnit& unit) {
  if (!dividing_) {
    large_ = TextUnit{};
    if (!walker_.next(large_.file)) return false;
    large_.format = format_of(large_.file.path);
    dividing_ =
        large_.format == TextFormat::jsonl && large_.file.bytes > range_bytes && !is_gzip(large_.file.path);
    if (!dividing_) {
      unit = std::move(large_);
      return true;
    }
  }
  unit = large_;
  if (large_.begin + range_bytes < large_.file.bytes) {
    unit.end = large_.begin += range_bytes;
  } else {
    dividing_ = false;  // the last range reaches to the end, wherever that is when it is read
  }
  return true;
}

}  // namespace deltaport
