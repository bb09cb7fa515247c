// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace deltaport {

struct SamplingOptions {
  double temperature = 1.0;  ///< 0 takes the most likely token
  std::int64_t top_k = 0;    ///< keep the k most likely tokens; 0 keeps all
  double top_p = 1.0;        ///< keep the smallest set of most likely tokens whose probability reaches p
  std::uint64_t seed = 0;
};

/// Draws one token from host logits. Ties are broken by the smaller id; the draw is the Philox number (seed,
/// sequence, position), so a text depends on its seed alone. Throws ConfigError for options out of range
/// (temperature < 0, top_k < 0, top_p outside (0, 1]) and NonFiniteError when no logit is finite.
std::int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options,
                          std::uint64_t sequence, std::uint64_t position);

}  // namespace deltaport
