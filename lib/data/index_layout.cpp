// SPDX-License-Identifier: Apache-2.0
#include "data/index_layout.hpp"

#include "deltaport/core/error.hpp"

namespace deltaport::index_layout {
namespace {

TokenDtype parse_dtype(std::uint8_t code, const std::string& path) {
  constexpr const char* names[] = {nullptr, "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  switch (code) {
    case 1:
    case 4:
    case 5:
    case 8:
      return static_cast<TokenDtype>(code);
    default:
      break;
  }
  const char* const expected = "expected 1 (u8), 4 (i32), 5 (i64) or 8 (u16)";
  if (code >= 2 && code <= 7)
    throw DataError(concat(path, ": byte ", dtype_offset, ": dtype code ", int{code}, " (", names[code],
                           ") cannot hold token ids; ", expected));
  throw DataError(concat(path, ": byte ", dtype_offset, ": unknown dtype code ", int{code}, "; ", expected));
}

void check_magic(std::span<const std::byte> idx, const std::string& path) {
  DELTAPORT_VALIDATE(idx.size() >= header_bytes, DataError, path, ": byte ", idx.size(),
                     ": the file ends inside the header; expected at least ", header_bytes, " bytes");
  DELTAPORT_VALIDATE(std::memcmp(idx.data(), magic, sizeof(magic)) == 0, DataError, path,
                     ": byte 0: not an index of tokens; expected the magic bytes \"MMIDIDX\\0\\0\"");
  const auto found = load<std::uint64_t>(idx.data() + version_offset);
  DELTAPORT_VALIDATE(found == version, DataError, path, ": byte ", version_offset, ": version ", found,
                     "; expected ", version);
}

/// Counts come from the file, so every product is preceded by the division that shows that it fits.
Index place_arrays(std::span<const std::byte> idx, const std::string& path) {
  const auto sequences = load<std::uint64_t>(idx.data() + sequence_count_offset);
  const auto entries = load<std::uint64_t>(idx.data() + document_count_offset);
  const std::uint64_t room = idx.size() - header_bytes;
  DELTAPORT_VALIDATE(sequences <= room / 12, DataError, path, ": byte ", sequence_count_offset, ": ",
                     sequences, " sequences need 12 bytes each, but only ", room, " bytes follow the header");
  const std::uint64_t left = room - 12 * sequences;
  DELTAPORT_VALIDATE(entries >= 1, DataError, path, ": byte ", document_count_offset,
                     ": no document indices; expected at least 1");
  DELTAPORT_VALIDATE(entries <= left / 8, DataError, path, ": byte ", document_count_offset, ": ", entries,
                     " document indices need 8 bytes each, but only ", left, " bytes are left for them");
  const std::uint64_t extra = left - 8 * entries;
  DELTAPORT_VALIDATE(extra == 0 || extra != sequences, DataError, path, ": byte ", idx.size() - extra,
                     ": sequence modes found; multimodal data sets are not supported");
  DELTAPORT_VALIDATE(extra == 0, DataError, path, ": byte ", idx.size() - extra, ": ", extra,
                     " bytes follow the document indices; expected the end of the file");
  Index index{};
  index.sequences = static_cast<std::int64_t>(sequences);
  index.documents = static_cast<std::int64_t>(entries) - 1;
  index.lengths = idx.data() + header_bytes;
  index.pointers = index.lengths + 4 * sequences;
  index.document_indices = index.pointers + 8 * sequences;
  return index;
}

void check_sequences(const Index& index, std::span<const std::byte> idx, const std::string& path,
                     std::int64_t bin_bytes, const std::string& bin_path) {
  const std::int64_t item = size_of(index.dtype);
  std::int64_t position = 0;
  for (std::int64_t i = 0; i < index.sequences; ++i) {
    const std::int64_t length = index.length(i);
    DELTAPORT_VALIDATE(length >= 0, DataError, path, ": byte ", index.lengths + 4 * i - idx.data(),
                       ": sequence ", i, " has length ", length, "; expected 0 or more");
    const std::int64_t pointer = index.pointer(i);
    DELTAPORT_VALIDATE(pointer == position, DataError, path, ": byte ", index.pointers + 8 * i - idx.data(),
                       ": sequence ", i, " points at byte ", pointer, "; expected ", position,
                       ", the end of the one before");
    position += length * item;
    DELTAPORT_VALIDATE(position <= bin_bytes, DataError, path, ": byte ", index.lengths + 4 * i - idx.data(),
                       ": sequence ", i, " ends at byte ", position, " of ", bin_path, ", which has ",
                       bin_bytes, " bytes");
  }
  DELTAPORT_VALIDATE(position == bin_bytes, DataError, bin_path, ": byte ", position, ": the file has ",
                     bin_bytes, " bytes, but the sequences of ", path, " end here");
}

void check_documents(const Index& index, std::span<const std::byte> idx, const std::string& path) {
  std::int64_t before = 0;
  for (std::int64_t d = 0; d <= index.documents; ++d) {
    const std::int64_t at = index.document_index(d);
    const auto offset = index.document_indices + 8 * d - idx.data();
    DELTAPORT_VALIDATE(d != 0 || at == 0, DataError, path, ": byte ", offset,
                       ": the first document index is ", at, "; expected 0");
    DELTAPORT_VALIDATE(at >= before && at <= index.sequences, DataError, path, ": byte ", offset,
                       ": document index ", d, " is ", at, "; expected ", before, " to ", index.sequences);
    before = at;
  }
  DELTAPORT_VALIDATE(before == index.sequences, DataError, path, ": byte ", idx.size() - 8,
                     ": the last document index is ", before, "; expected the sequence count ",
                     index.sequences);
}

}  // namespace

Index parse(std::span<const std::byte> idx, const std::string& path, std::int64_t bin_bytes,
            const std::string& bin_path) {
  check_magic(idx, path);
  const TokenDtype dtype = parse_dtype(load<std::uint8_t>(idx.data() + dtype_offset), path);
  Index index = place_arrays(idx, path);
  index.dtype = dtype;
  check_sequences(index, idx, path, bin_bytes, bin_path);
  check_documents(index, idx, path);
  return index;
}

}  // namespace deltaport::index_layout
