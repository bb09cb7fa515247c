// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "deltaport/core/error.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

void validate(const SamplingOptions& options) {
  DELTAPORT_VALIDATE(std::isfinite(options.temperature) && options.temperature >= 0.0, ConfigError,
                     "temperature is ", options.temperature, ", allowed is 0 or more");
  DELTAPORT_VALIDATE(options.top_k >= 0, ConfigError, "top-k is ", options.top_k, ", allowed is 0 or more");
  DELTAPORT_VALIDATE(options.top_p > 0.0 && options.top_p <= 1.0, ConfigError, "top-p is ", options.top_p,
                     ", allowed is above 0 and at most 1");
}

}  // namespace

std::int32_t sample_token(const std::vector<double>& logits, const SamplingOptions& options,
                          std::uint64_t sequence, std::uint64_t position) {
  validate(options);
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (std::isfinite(logits[i])) order.push_back(static_cast<std::int32_t>(i));
  DELTAPORT_VALIDATE(!order.empty(), NonFiniteError, "no finite logit to sample from at position ", position,
                     "; the checkpoint's weights may have diverged");
  const auto logit = [&logits](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (options.temperature == 0.0) return order.front();
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size())
    order.resize(static_cast<std::size_t>(options.top_k));

  std::vector<double> weight(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    weight[i] = std::exp((logit(order[i]) - logit(order[0])) / options.temperature);
  double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  std::size_t kept = 0;
  double sum = 0.0;
  while (kept < order.size() && (kept == 0 || sum < options.top_p * total)) sum += weight[kept++];

  double target = uniform(options.seed, sequence, position) * sum;
  for (std::size_t i = 0; i < kept; ++i) {
    target -= weight[i];
    if (target < 0.0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace deltaport
