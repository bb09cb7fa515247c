// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "checkpoint/file_system.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "deltaport/core/dtype.hpp"

namespace deltaport {

namespace {

// A multiple of every element size.
constexpr std::uint64_t chunk_bytes = std::uint64_t{4} << 20;

template <class T>
constexpr FileDtype file_dtype() {
  switch (dtype_of<T>) {
    case Dtype::f32:
      return FileDtype::f32;
    case Dtype::f64:
      return FileDtype::f64;
    case Dtype::bf16:
      return FileDtype::bf16;
    case Dtype::f16:
      return FileDtype::f16;
    case Dtype::i32:
      return FileDtype::i32;
    default:
      return FileDtype::i64;
  }
}

}  // namespace

void SafetensorsWriter::set_metadata(const std::string& key, const std::string& value) {
  metadata_[key] = value;
}

void SafetensorsWriter::add(const std::string& name, FileDtype dtype, const std::vector<std::int64_t>& shape,
                            Fill fill) {
  Pending pending{TensorEntry{name, dtype, shape, 0, 0}, std::move(fill)};
  if (!safetensors::checked_bytes(dtype, shape, pending.entry.end))
    files::raise(origin_, concat("tensor \"", name, "\": the size of shape ", pending.entry.shape_string(),
                                 " of ", name_of(dtype), " overflows or leaves part of a byte"));
  if (name == "__metadata__" || !tensors_.emplace(name, std::move(pending)).second)
    files::raise(origin_, concat("tensor \"", name, "\": the name is taken"));
}

template <class T>
void SafetensorsWriter::add(const std::string& name, const Shape& shape, const T* host) {
  std::vector<std::int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(shape[i]);
  const auto* from = reinterpret_cast<const std::byte*>(host);
  add(name, file_dtype<T>(), extents, [from](std::uint64_t first_byte, std::uint64_t bytes, void* to) {
    std::memcpy(to, from + first_byte, static_cast<std::size_t>(bytes));
  });
}

template <class T>
void SafetensorsWriter::add(const std::string& name, const Shape& shape, const std::vector<T>& host) {
  DELTAPORT_VALIDATE(static_cast<std::size_t>(shape.size()) == host.size(), ShapeError, "tensor \"", name,
                     "\": ", host.size(), " values for shape ", shape.str());
  add(name, shape, host.data());
}

std::uint64_t SafetensorsWriter::data_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& item : tensors_) bytes += item.second.entry.end - item.second.entry.begin;
  return bytes;
}

std::vector<const SafetensorsWriter::Pending*> SafetensorsWriter::sorted() const {
  std::vector<const Pending*> order;
  for (const auto& item : tensors_) order.push_back(&item.second);  // by name already
  std::stable_sort(order.begin(), order.end(),
                   [](const Pending* a, const Pending* b) { return a->entry.dtype > b->entry.dtype; });
  return order;
}

FileDigest SafetensorsWriter::write(const std::filesystem::path& path) const {
  const std::vector<const Pending*> order = sorted();
  safetensors::Header header{metadata_, {}};
  std::uint64_t at = 0;
  for (const Pending* pending : order) {
    TensorEntry entry = pending->entry;
    entry.begin = at;
    at += pending->entry.end;
    entry.end = at;
    header.tensors.push_back(std::move(entry));
  }
  const std::string text = safetensors::format_header(header, origin_);
  if (text.size() > safetensors::max_header_bytes)
    files::raise(origin_, concat(path.string(), ": the header would take ", text.size(),
                                 " bytes, the format allows ", safetensors::max_header_bytes));
  // The rename below would put a file in the place of a device such as /dev/null.
  std::error_code unknown;
  const auto there = std::filesystem::status(path, unknown);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    files::raise(origin_, concat("cannot write ", path.string(), ": it exists and is not a regular file"));
  const files::Path part = path.string() + ".part";
  try {
    files::OutputFile file(part, origin_);
    const std::uint64_t length = text.size();
    file.write(&length, sizeof length);
    file.write(text.data(), text.size());
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(chunk_bytes, at)));
    for (const Pending* pending : order) {
      const std::uint64_t size = pending->entry.end;
      for (std::uint64_t first = 0; first < size; first += chunk_bytes) {
        const std::uint64_t bytes = std::min(chunk_bytes, size - first);
        pending->fill(first, bytes, buffer.data());
        file.write(buffer.data(), bytes);
      }
    }
    const FileDigest digest = file.finish();
    files::rename_path(part, path, origin_);
    files::sync_directory(path.parent_path(), origin_);
    return digest;
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw;
  }
}

#define DELTAPORT_INSTANTIATE(T)                                                       \
  template void SafetensorsWriter::add<T>(const std::string&, const Shape&, const T*); \
  template void SafetensorsWriter::add<T>(const std::string&, const Shape&, const std::vector<T>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(std::int32_t)
DELTAPORT_INSTANTIATE(std::int64_t)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
