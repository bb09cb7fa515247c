// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/sample_source.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "data/fingerprint.hpp"
#include "data/window.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/rng.hpp"
#include "deltaport/data/mixture.hpp"
#include "deltaport/data/permutation.hpp"
#include "deltaport/data/token_file.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t max_batch_tokens = std::numeric_limits<std::int32_t>::max();  // cu_seqlens is int32

void check_options(const std::vector<DataSource>& sources, const SampleOptions& options) {
  DELTAPORT_VALIDATE(!sources.empty(), ConfigError,
                     "no data sources; name at least one PREFIX of a token file");
  DELTAPORT_VALIDATE(options.seq_len >= 1 && options.seq_len <= max_batch_tokens, ConfigError, "seq_len is ",
                     options.seq_len, "; expected 1 to ", max_batch_tokens);
  DELTAPORT_VALIDATE(options.vocab_size >= 1, ConfigError, "vocab_size is ", options.vocab_size,
                     "; expected 1 or more");
}

}  // namespace

struct SampleSource::Impl {
  /// Where one sample lies.
  struct Location {
    std::size_t source;
    std::int64_t window;
  };

  Impl(const std::vector<DataSource>& given, const SampleOptions& o);
  void open(const DataSource& source);
  Location locate(std::int64_t sample) const;
  Location locate_sequential(std::int64_t sample) const;

  SampleOptions options;
  std::vector<DataSource> sources;
  std::vector<TokenFile> files;
  std::vector<std::int64_t> windows;
  std::vector<std::uint64_t> streams;  // identity of each source in its permutation's key
  std::int64_t total_windows = 0;
  std::int64_t total_tokens = 0;
  std::optional<Mixture> mixture;
  std::string fingerprint;
};

SampleSource::Impl::Impl(const std::vector<DataSource>& given, const SampleOptions& o)
    : options(o), sources(given) {
  check_options(given, o);
  for (const DataSource& source : given) open(source);
  // Base names first, so that neither the order of the list nor the folder matters; the rest breaks ties.
  std::vector<std::size_t> order(given.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](std::size_t i) {
    return std::make_tuple(base_name_of(given[i].path), given[i].weight, files[i].tokens(), given[i].path);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  std::vector<TokenFile> sorted;
  std::vector<double> weights;
  for (std::size_t i = 0; i < order.size(); ++i) {
    sources[i] = given[order[i]];
    weights.push_back(sources[i].weight);
    sorted.push_back(std::move(files[order[i]]));
    windows.push_back(windows_of(sorted.back(), options.seq_len));
    streams.push_back(stream_of(base_name_of(sources[i].path)));
    total_windows += windows.back();
    total_tokens += sorted.back().tokens();
  }
  files = std::move(sorted);
  if (options.order != SampleOrder::sequential) mixture.emplace(weights);
  fingerprint = fingerprint_of(sources, files, options);
}

void SampleSource::Impl::open(const DataSource& source) {
  files.emplace_back(source.path);
  const TokenFile& file = files.back();
  DELTAPORT_VALIDATE(windows_of(file, options.seq_len) > 0, DataError, file.bin_path(), ": ", file.tokens(),
                     " tokens are too few for one sample of ", options.seq_len,
                     " (and one token more for the last label); use more text or a smaller data.seq_len");
}

SampleSource::Impl::Location SampleSource::Impl::locate_sequential(std::int64_t sample) const {
  std::int64_t left = sample % total_windows;
  std::size_t source = 0;
  while (left >= windows[source]) left -= windows[source++];
  return {source, left};
}

SampleSource::Impl::Location SampleSource::Impl::locate(std::int64_t sample) const {
  if (options.order == SampleOrder::sequential) return locate_sequential(sample);
  const Mixture::Draw draw = mixture->draw(sample);
  const auto source = static_cast<std::size_t>(draw.source);
  const std::int64_t index = draw.index % windows[source];
  if (options.order == SampleOrder::in_order) return {source, index};
  const auto epoch = static_cast<std::uint64_t>(draw.index / windows[source]);
  return {source, KeyedPermutation(windows[source], options.seed, epoch, streams[source])(index)};
}

SampleSource::SampleSource(const std::vector<DataSource>& sources, const SampleOptions& options)
    : impl_(std::make_unique<Impl>(sources, options)) {}
SampleSource::~SampleSource() = default;
SampleSource::SampleSource(SampleSource&&) noexcept = default;

std::int64_t SampleSource::samples() const {
  return impl_->total_windows;
}
std::int64_t SampleSource::tokens() const {
  return impl_->total_tokens;
}
const SampleOptions& SampleSource::options() const {
  return impl_->options;
}
const std::string& SampleSource::fingerprint() const {
  return impl_->fingerprint;
}

Batch SampleSource::batch(std::int64_t first, std::int64_t count) const {
  const std::int64_t length = impl_->options.seq_len;
  DELTAPORT_VALIDATE(first >= 0 && count >= 1 && count <= max_batch_tokens / length, ShapeError, "batch of ",
                     count, " samples from number ", first, ": expected 1 to ", max_batch_tokens / length,
                     " samples of ", length, " tokens, from number 0 on");
  Batch batch;
  batch.first = first;
  batch.count = count;
  batch.seq_len = length;
  batch.tokens.resize(static_cast<std::size_t>(count * length));
  batch.labels.resize(batch.tokens.size());
  batch.cu_seqlens.push_back(0);
  for (std::int64_t i = 0; i < count; ++i) {
    const Impl::Location at = impl_->locate(first + i);
    const auto begin = static_cast<std::size_t>(i * length);
    const auto extent = static_cast<std::size_t>(length);
    batch.valid_tokens +=
        read_window(impl_->files[at.source], at.window, impl_->options.vocab_size,
                    std::span(batch.tokens).subspan(begin, extent),
                    std::span(batch.labels).subspan(begin, extent), i * length, batch.cu_seqlens);
  }
  return batch;
}

std::int64_t SampleSource::valid_tokens(std::int64_t first, std::int64_t count) const {
  DELTAPORT_VALIDATE(first >= 0 && count >= 0, ShapeError, "valid tokens of ", count, " samples from number ",
                     first, ": neither may be negative");
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Impl::Location at = impl_->locate(first + i);
    valid += count_labels(impl_->files[at.source], at.window, impl_->options.seq_len);
  }
  return valid;
}

}  // namespace deltaport
