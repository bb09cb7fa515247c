// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "deltaport/config/run_config.hpp"

namespace deltaport::testing {

/// The gated attention layer written out token by token in double, without tiles, products or tables.
/// Parameters in the order in which AttentionMixer declares them: q, k, v, o, q_norm, k_norm.
class AttentionOracle {
 public:
  AttentionOracle(const ModelConfig& config, std::vector<std::vector<double>> parameters)
      : config_(config), parameters_(std::move(parameters)) {}

  /// x [T, hidden] of one document that starts at position 0.
  std::vector<double> run(const std::vector<double>& x) const {
    const std::size_t hd = head_dim(), tokens = x.size() / hidden();
    const std::size_t heads = static_cast<std::size_t>(config_.attention.num_heads);
    const std::size_t kv_heads = static_cast<std::size_t>(config_.attention.num_kv_heads);
    std::vector<double> y(x.size(), 0.0);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t g = h / (heads / kv_heads);
      std::vector<std::vector<double>> k, v;
      for (std::size_t t = 0; t < tokens; ++t) {
        k.push_back(rotate(norm(rows(1, g * hd, x, t), parameters_[5]), static_cast<double>(t)));
        v.push_back(rows(2, g * hd, x, t));
        const auto q = rotate(norm(rows(0, 2 * h * hd, x, t), parameters_[4]), static_cast<double>(t));
        const auto gate = rows(0, (2 * h + 1) * hd, x, t);
        auto out = attend(q, k, v);
        for (std::size_t i = 0; i < hd; ++i) out[i] /= 1.0 + std::exp(-gate[i]);
        for (std::size_t d = 0; d < hidden(); ++d)
          for (std::size_t i = 0; i < hd; ++i)
            y[t * hidden() + d] += parameters_[3][d * heads * hd + h * hd + i] * out[i];
      }
    }
    return y;
  }

 private:
  std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden_size); }
  std::size_t head_dim() const { return static_cast<std::size_t>(config_.attention.head_dim); }

  /// head_dim rows of a weight from `first` on, times the token's x.
  std::vector<double> rows(std::size_t weight, std::size_t first, const std::vector<double>& x,
                           std::size_t t) const {
    std::vector<double> out(head_dim(), 0.0);
    for (std::size_t i = 0; i < out.size(); ++i)
      for (std::size_t d = 0; d < hidden(); ++d)
        out[i] += parameters_[weight][(first + i) * hidden() + d] * x[t * hidden() + d];
    return out;
  }

  std::vector<double> norm(std::vector<double> x, const std::vector<double>& w) const {
    double squares = 0.0;
    for (double value : x) squares += value * value;
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + config_.rms_norm_eps);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= rstd * (1.0 + w[i]);
    return x;
  }

  std::vector<double> rotate(const std::vector<double>& x, double position) const {
    const double width = static_cast<double>(x.size()) * config_.attention.partial_rotary_factor;
    const auto half = static_cast<std::size_t>(std::llround(width)) / 2;
    std::vector<double> y = x;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(config_.attention.rope_theta,
                                               -2.0 * static_cast<double>(i) / std::llround(width));
      y[i] = x[i] * std::cos(angle) - x[half + i] * std::sin(angle);
      y[half + i] = x[half + i] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return y;
  }

  std::vector<double> attend(const std::vector<double>& q, const std::vector<std::vector<double>>& k,
                             const std::vector<std::vector<double>>& v) const {
    std::vector<double> out(q.size(), 0.0);
    double sum = 0.0;
    for (std::size_t s = 0; s < k.size(); ++s) {
      double score = 0.0;
      for (std::size_t i = 0; i < q.size(); ++i) score += q[i] * k[s][i];
      const double weight = std::exp(score / std::sqrt(static_cast<double>(q.size())));
      sum += weight;
      for (std::size_t i = 0; i < q.size(); ++i) out[i] += weight * v[s][i];
    }
    for (double& value : out) value /= sum;
    return out;
  }

  ModelConfig config_;
  std::vector<std::vector<double>> parameters_;
};

}  // namespace deltaport::testing
