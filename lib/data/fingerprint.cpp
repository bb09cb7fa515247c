// SPDX-License-Identifier: Apache-2.0
#include "data/fingerprint.hpp"

#include <algorithm>

#include "data/checksum.hpp"
#include "data/index_layout.hpp"

namespace deltaport {
namespace {

template <class T>
void add_value(Checksum& checksum, const T& value) {
  checksum.add(std::as_bytes(std::span(&value, 1)));
}

void add_name(Checksum& checksum, std::string_view name) {
  add_value(checksum, static_cast<std::uint64_t>(name.size()));
  checksum.add(name);
}

/// Size, first and last 64 KiB: enough to notice another file, cheap for terabytes.
void add_file(Checksum& checksum, std::span<const std::byte> bytes) {
  constexpr std::size_t sample_bytes = 64 * 1024;
  add_value(checksum, static_cast<std::uint64_t>(bytes.size()));
  const std::size_t taken = std::min(bytes.size(), sample_bytes);
  checksum.add(bytes.first(taken));
  checksum.add(bytes.last(taken));
}

}  // namespace

std::string base_name_of(const std::string& prefix) {
  const std::size_t slash = prefix.find_last_of('/');
  return slash == std::string::npos ? prefix : prefix.substr(slash + 1);
}

std::string fingerprint_of(const std::vector<DataSource>& sources, const std::vector<TokenFile>& files,
                           const SampleOptions& options) {
  Checksum checksum;
  add_name(checksum, "deltaport samples 1");  // changes with the sampling rule
  add_value(checksum, options.seq_len);
  add_value(checksum, options.seed);
  add_value(checksum, static_cast<std::int32_t>(options.order));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    add_name(checksum, base_name_of(sources[i].path));
    add_value(checksum, sources[i].weight);
    add_file(checksum, files[i].idx_bytes());
    add_file(checksum, files[i].bin_bytes());
  }
  return checksum.hex();
}

}  // namespace deltaport
