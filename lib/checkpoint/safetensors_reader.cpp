// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "checkpoint/convert.hpp"
#include "checkpoint/file_system.hpp"
#include "checkpoint/input_file.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace deltaport {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

struct SafetensorsReader::Impl {
  Impl(std::filesystem::path path, FileOrigin file_origin)
      : file(std::move(path), file_origin), origin(file_origin) {}
  files::InputFile file;
  FileOrigin origin;
  std::uint64_t data_begin = 0;
  safetensors::Header header;
  std::map<std::string, std::size_t, std::less<>> index;
};

SafetensorsReader::SafetensorsReader(std::filesystem::path path, FileOrigin origin)
    : impl_(std::make_unique<Impl>(std::move(path), origin)) {
  using namespace safetensors;
  const std::string name = impl_->file.path().string();
  const std::uint64_t bytes = impl_->file.bytes();
  if (bytes < length_bytes)
    files::raise(origin,
                 concat(name, ": ", bytes, " bytes: too small for the header length of a safetensors file"));
  std::uint64_t length = 0;
  impl_->file.read(0, length_bytes, &length);
  if (length > max_header_bytes)
    files::raise(origin, concat(name, ": header length ", length, " is above the limit of ", max_header_bytes,
                                "; not a safetensors file?"));
  if (length > bytes - length_bytes)
    files::raise(origin, concat(name, ": header length ", length, " is beyond the end of the file (", bytes,
                                " bytes)"));
  std::string text(static_cast<std::size_t>(length), '\0');
  impl_->file.read(length_bytes, length, text.data());
  impl_->data_begin = length_bytes + length;
  impl_->header = parse_header(text, bytes - impl_->data_begin, name, origin);
  for (std::size_t i = 0; i < impl_->header.tensors.size(); ++i)
    impl_->index.emplace(impl_->header.tensors[i].name, i);
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const std::filesystem::path& SafetensorsReader::path() const {
  return impl_->file.path();
}
const std::vector<TensorEntry>& SafetensorsReader::tensors() const {
  return impl_->header.tensors;
}
const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  return impl_->header.metadata;
}

const TensorEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = impl_->index.find(name);
  return found == impl_->index.end() ? nullptr : &impl_->header.tensors[found->second];
}

const TensorEntry& SafetensorsReader::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  std::string names;
  constexpr std::size_t shown = 20;
  for (std::size_t i = 0; i < std::min(shown, tensors().size()); ++i)
    names += (i ? ", " : "") + tensors()[i].name;
  if (tensors().size() > shown) names += concat(", ... (", tensors().size(), " in all)");
  files::raise(impl_->origin, concat(path().string(), ": tensor \"", name,
                                     "\" is missing; the file has: ", names.empty() ? "none" : names));
}

void SafetensorsReader::read_bytes(const TensorEntry& tensor, std::uint64_t first_byte, std::uint64_t bytes,
                                   void* to) const {
  const std::uint64_t size = tensor.end - tensor.begin;
  DELTAPORT_VALIDATE(first_byte <= size && bytes <= size - first_byte, ShapeError, path().string(),
                     ": tensor \"", tensor.name, "\": bytes [", first_byte, ", +", bytes, ") of ", size);
  impl_->file.read(impl_->data_begin + tensor.begin + first_byte, bytes, to);
}

template <class T>
void SafetensorsReader::read_range(const TensorEntry& tensor, std::int64_t first, std::int64_t count,
                                   T* to) const {
  const auto convert = file_conversion<T>(tensor.dtype);
  if (!convert)
    files::raise(impl_->origin,
                 concat(path().string(), ": tensor \"", tensor.name, "\" has dtype ", name_of(tensor.dtype),
                        ", which cannot be read as ", name_of(dtype_of<T>)));
  const std::int64_t elements = tensor.elements();
  DELTAPORT_VALIDATE(0 <= first && 0 <= count && first <= elements && count <= elements - first, ShapeError,
                     path().string(), ": tensor \"", tensor.name, "\": elements [", first, ", +", count,
                     ") of ", elements);
  const auto width = static_cast<std::uint64_t>(bits_of(tensor.dtype) / 8);
  constexpr std::int64_t chunk = 1 << 17;
  std::vector<std::byte> raw(static_cast<std::size_t>(std::min(chunk, count)) * width);
  for (std::int64_t done = 0; done < count; done += chunk) {
    const std::int64_t n = std::min(chunk, count - done);
    read_bytes(tensor, static_cast<std::uint64_t>(first + done) * width,
               static_cast<std::uint64_t>(n) * width, raw.data());
    const std::int64_t bad = convert(raw.data(), n, to + done);
    if (bad >= 0)
      files::raise(impl_->origin,
                   concat(path().string(), ": tensor \"", tensor.name, "\" element ", first + done + bad,
                          ": the value does not fit ", name_of(dtype_of<T>)));
  }
}

template <class T>
std::vector<T> SafetensorsReader::read(std::string_view name) const {
  const TensorEntry& entry = at(name);
  std::vector<T> values(static_cast<std::size_t>(entry.elements()));
  read_range(entry, 0, entry.elements(), values.data());
  return values;
}

#define DELTAPORT_INSTANTIATE(T)                                                                            \
  template void SafetensorsReader::read_range<T>(const TensorEntry&, std::int64_t, std::int64_t, T*) const; \
  template std::vector<T> SafetensorsReader::read<T>(std::string_view) const;
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(std::int32_t)
DELTAPORT_INSTANTIATE(std::int64_t)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
