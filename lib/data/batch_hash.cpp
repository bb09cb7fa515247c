// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/batch_hash.hpp"

#include <span>

#include "data/checksum.hpp"

namespace deltaport {

std::uint64_t batch_hash(const Batch& batch, std::uint64_t before) {
  Checksum sum;
  const auto add = [&](const auto& values) {
    const std::uint64_t count = values.size();
    sum.add(std::as_bytes(std::span(&count, 1)));
    sum.add(std::as_bytes(std::span(values)));
  };
  sum.add(std::as_bytes(std::span(&before, 1)));
  add(batch.tokens);
  add(batch.labels);
  add(batch.cu_seqlens);
  return sum.value().low;
}

}  // namespace deltaport
