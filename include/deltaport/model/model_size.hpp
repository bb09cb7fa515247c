// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/dtype.hpp"
#include "deltaport/model/hybrid_lm.hpp"

/// Sizes of a model before it exists: nothing here allocates tensor memory.
namespace deltaport {

/// One line of a size table.
struct SizeEntry {
  std::string component;  ///< "embedding", "gdn mixers", "gdn2 mixers", "attention mixers", "mlps", "norms",
                          ///< "lm_head"
  std::int64_t amount = 0;  ///< parameters or bytes
};

/// Number of parameters; tied weights count once.
std::int64_t parameter_count(const ModelConfig& config);
/// Parameters by component, in the order above; components without parameters are left out. Sums to
/// parameter_count().
std::vector<SizeEntry> parameter_breakdown(const ModelConfig& config);

/// Device memory of one micro-batch, in bytes.
struct ActivationSize {
  /// Kept between forward and backward, by component. Exactly what HybridLm saves, arena rounding left out, but for the
  /// recurrences' preparation (LmOptions::preparation): counted is one sequence in each row, and each further document takes a
  /// chunk of 64 tokens more.
  std::vector<SizeEntry> saved;
  /// Most that is alive besides at any time, from the tensors of the largest layer's backward and of the
  /// loss. An estimate: small tensors and a recurrence's own scratch (for chunk states) are counted roughly.
  std::int64_t workspace_bytes = 0;

  std::int64_t saved_bytes() const;
};
/// `tokens` of one micro-batch in rows of `row_tokens` (0: one row), values of `dtype` (bf16, f32 or f64; ConfigError
/// otherwise).
ActivationSize activation_size(const ModelConfig& config, std::int64_t tokens, Dtype dtype,
                               const LmOptions& options = {}, std::int64_t row_tokens = 0);

/// One tensor that HybridLm saves; it has memory of its own.
struct SavedTensorSize {
  std::int64_t elements, bytes;
};
/// One group of them, for `tokens` of one micro-batch.
struct SavedGroupSize {
  std::string scope;  ///< "gdn_core_attn", "norm_out", "attn_core", "mlp"
  std::vector<SavedTensorSize> tensors;
};
/// All groups in the order of their commits, values of `dtype`.
std::vector<SavedGroupSize> saved_groups(const ModelConfig& config, std::int64_t tokens, Dtype dtype,
                                         const LmOptions& options = {}, std::int64_t row_tokens = 0);

}  // namespace deltaport
