// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/config/run_config.hpp"

namespace deltaport {

/// Floating-point operations that training on one token needs, forward and backward, whatever computes them:
/// nothing is counted that is only computed again. A backward counts as two forwards. Multiply-adds are two
/// operations; element-wise work, norms, convolution and the optimizer are left out.
struct ModelFlops {
  double products =
      0;  ///< 6 per weight of a matrix; an untied embedding, which is only looked up, not among them
  double attention =
      0;  ///< 6 heads head_dim (seq_len + 1) per attention layer: scores and values, the causal half
  double recurrence =
      0;  ///< 3 HV (6 K V + 4 C (K + V) + 2 C^2 / 3) per GDN or GDN2 layer: its form with chunks of C = 64
  double total() const { return products + attention + recurrence; }
};

/// For rows of `seq_len` tokens, each taken as one document. Allocates no tensors. Throws ConfigError as
/// HybridLm does.
ModelFlops training_flops_per_token(const ModelConfig& config, std::int64_t seq_len);

}  // namespace deltaport
