// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deltaport/core/shape.hpp"

namespace deltaport {

/// Where a file comes from; decides which error (and exit code) its defects are reported with.
enum class FileOrigin {
  checkpoint,  ///< CheckpointError, exit code 5
  data,        ///< DataError, exit code 4
  user         ///< Error with ExitCode::bad_input, exit code 2
};

/// Element types of the safetensors format, in the format's own order: files hold tensors by descending type,
/// then name.
enum class FileDtype {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

/// Bits of one element (4, 6, 8, 16, 32 or 64).
int bits_of(FileDtype dtype);
/// Name in the file: "F32", "BF16", "BOOL", ...
std::string_view name_of(FileDtype dtype);
/// The reverse of name_of; nothing for unknown names.
std::optional<FileDtype> parse_file_dtype(std::string_view name);

/// One tensor of a safetensors file.
struct TensorEntry {
  std::string name;
  FileDtype dtype = FileDtype::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< first byte, counted from the start of the data section
  std::uint64_t end = 0;    ///< one past the last byte

  std::int64_t elements() const;
  /// The shape as a tensor's. Throws ShapeError beyond six dimensions.
  Shape tensor_shape() const;
  /// "[2, 3]"
  std::string shape_string() const;
};

/// Reads a safetensors file with plain positioned reads: nothing of the data stays in memory, and a file that
/// shrinks while it is read is an error, not a crash. Opening checks everything the format demands (header
/// length, UTF-8, JSON without duplicate names, known types, sizes without overflow, data without holes or
/// overlaps, exact file size); the error names file, tensor and offset. Little-endian hosts only. Safe to
/// read from several threads.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path path, FileOrigin origin = FileOrigin::checkpoint);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  const std::filesystem::path& path() const;
  /// In file order.
  const std::vector<TensorEntry>& tensors() const;
  /// The `__metadata__` strings.
  const std::map<std::string, std::string>& metadata() const;

  bool contains(std::string_view name) const { return find(name) != nullptr; }
  /// nullptr when there is none.
  const TensorEntry* find(std::string_view name) const;
  /// Throws, naming the file and what it holds instead.
  const TensorEntry& at(std::string_view name) const;

  /// Copies bytes [first_byte, first_byte + bytes) of the tensor's data to `to`.
  void read_bytes(const TensorEntry& tensor, std::uint64_t first_byte, std::uint64_t bytes, void* to) const;

  /// All elements as T. double, float, bfloat16 and float16 accept F16, BF16, F32 and F64 and round to nearest
  /// what T cannot express (halves by way of float); int32_t and int64_t accept every integer type and throw
  /// when a value does not fit. Any other combination throws, naming tensor and types. T is one of these.
  template <class T>
  std::vector<T> read(std::string_view name) const;
  /// The same for elements [first, first + count) into host memory.
  template <class T>
  void read_range(const TensorEntry& tensor, std::int64_t first, std::int64_t count, T* to) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Size and content hash of a file.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string xxh3_128;  ///< 32 lower-case hexadecimal digits

  friend bool operator==(const FileDigest& a, const FileDigest& b) {
    return a.bytes == b.bytes && a.xxh3_128 == b.xxh3_128;
  }
};

/// Collects tensors, then writes them in one pass. The bytes depend only on what was added, not on the order
/// of adding.
class SafetensorsWriter {
 public:
  /// Puts bytes [first_byte, first_byte + bytes) of the tensor's data into `to`. Called in ascending order,
  /// at most 4 MiB at a time (whole elements).
  using Fill = std::function<void(std::uint64_t first_byte, std::uint64_t bytes, void* to)>;

  explicit SafetensorsWriter(FileOrigin origin = FileOrigin::checkpoint) : origin_(origin) {}

  /// Adds a string to `__metadata__`, which always holds "format": "pt".
  void set_metadata(const std::string& key, const std::string& value);
  /// Adds a tensor whose data `fill` gives while write() runs. Throws for a name already taken, the name
  /// "__metadata__", and sizes that overflow or do not fill whole bytes.
  void add(const std::string& name, FileDtype dtype, const std::vector<std::int64_t>& shape, Fill fill);
  /// Adds a tensor in host memory that must stay alive until write() returns. T is float, double,
  /// bfloat16, float16, std::int32_t or std::int64_t, stored as it is.
  template <class T>
  void add(const std::string& name, const Shape& shape, const T* host);
  /// The same, with the element count checked; keeps a copy of nothing.
  template <class T>
  void add(const std::string& name, const Shape& shape, const std::vector<T>& host);

  /// Bytes of data added so far, header left out.
  std::uint64_t data_bytes() const;
  /// Writes `path`.part, flushes it to the disk, renames it to `path` and flushes the folder: readers see the
  /// old file or the whole new one. On failure the part file is removed and the error of the file's origin
  /// thrown, as where `path` is something other than a regular file.
  FileDigest write(const std::filesystem::path& path) const;

 private:
  struct Pending {
    TensorEntry entry;
    Fill fill;
  };
  std::vector<const Pending*> sorted() const;
  FileOrigin origin_;
  std::map<std::string, Pending> tensors_;
  std::map<std::string, std::string> metadata_ = {{"format", "pt"}};
};

}  // namespace deltaport
