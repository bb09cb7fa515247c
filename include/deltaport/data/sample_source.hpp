// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/label.hpp"

namespace deltaport {

enum class SampleOrder {
  shuffled,    ///< sources mixed by weight, each in a new keyed permutation per epoch
  in_order,    ///< sources mixed by weight, each front to back
  sequential,  ///< one source after the other, front to back, weights unused: for validation
};

struct SampleOptions {
  std::int64_t seq_len = 1024;
  std::int64_t vocab_size = 257;  ///< of the model; larger ids in the data are errors
  std::uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
};

/// One or more samples laid end to end, ready to be copied to the device.
struct Batch {
  std::int64_t first = 0;  ///< number of the first sample
  std::int64_t count = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int32_t> tokens;      ///< [count * seq_len]
  std::vector<std::int32_t> labels;      ///< [count * seq_len], ignored_label where there is none
  std::vector<std::int32_t> cu_seqlens;  ///< [sequences + 1], 0 .. count * seq_len, strictly ascending
  std::int64_t valid_tokens = 0;         ///< labels that are not ignored_label
};

/// The samples of a run as a pure function of their number: no state, no index to build, nothing that depends
/// on ranks or micro-batches. Resuming at sample n is calling batch(n, ...).
///
/// The documents of a source, in stored order, form one stream. Window k is its tokens [k L, k L + L) with L
/// = seq_len; one more token serves as the last label, so a source of N tokens has floor((N - 1) / L) windows
/// and at most L trailing tokens are never inputs. Documents are cut where a window ends; each piece is a
/// sequence of its own (cu_seqlens), positions start at 0. The label of a token is the next token of the same
/// document, even if that lies in the next window; a document's last token has ignored_label.
///
/// Sample n >= 0: the mixture names source and draw index i of that source (Mixture); with W windows, epoch e
/// = i / W and window perm(seed, e, source)(i mod W). Sources are ordered by base name, so listing them in
/// another order, or from another folder, changes nothing. All const members may be called from several
/// threads.
class SampleSource {
 public:
  /// Opens every source. Throws DataError (damaged, or too short for one window), ConfigError (options,
  /// weights).
  SampleSource(const std::vector<DataSource>& sources, const SampleOptions& options);
  ~SampleSource();
  SampleSource(SampleSource&&) noexcept;

  /// Samples of one epoch: the windows of all sources together.
  std::int64_t samples() const;
  /// Tokens of all sources together.
  std::int64_t tokens() const;
  const SampleOptions& options() const;

  /// Samples first .. first + count - 1; `first` may lie beyond the first epoch. Throws DataError naming file
  /// and token when an id is outside the vocabulary.
  Batch batch(std::int64_t first, std::int64_t count) const;
  /// The labels that these samples have, without reading their tokens; for the divisor of a whole step's
  /// loss.
  std::int64_t valid_tokens(std::int64_t first, std::int64_t count) const;

  /// 32 hex digits that change when the samples would: XXH3-128 of the sources' base names, weights, file
  /// sizes, index header, first and last 64 KiB of both files, and the options (the model's vocabulary
  /// apart).
  const std::string& fingerprint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaport
