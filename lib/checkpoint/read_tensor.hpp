// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "checkpoint/shards.hpp"

namespace deltaport::checkpoint {

/// Fills a tensor from the file, through a bounded host buffer.
template <class T>
void read_tensor(Runtime& runtime, const ShardSet::Found& found, const Tensor<T>& tensor) {
  constexpr std::int64_t chunk = std::int64_t{1} << 20;
  const std::int64_t n = tensor.size();
  std::vector<T> host(static_cast<std::size_t>(std::min(chunk, n)));
  const Tensor<T> slice = tensor.reshape(Shape{n});
  for (std::int64_t first = 0; first < n; first += chunk) {
    const std::int64_t count = std::min(chunk, n - first);
    found.reader->read_range(*found.entry, first, count, host.data());
    copy_from_host(runtime.compute(), slice.rows(first, first + count), host.data());
  }
}

/// Fills all parameters; `find(name)` gives a parameter's tensor. Where there are masters they take the
/// values as the file has them, and the layers' values are rounded from them.
template <class T, class Find>
void read_parameters(Runtime& runtime, const ParameterSet<T>& parameters, const Find& find) {
  const bool through_masters = parameters.flat_masters().defined();
  for (std::size_t i = 0; i < parameters.infos().size(); ++i) {
    const ParameterInfo& info = parameters.infos()[i];
    const ShardSet::Found& found = find(info.name);
    const int index = static_cast<int>(i);
    if (through_masters || info.kept == Kept::exact)
      read_tensor(runtime, found, parameters.master(index));
    else
      read_tensor(runtime, found, parameters.value(index));
  }
  if (through_masters) parameters.round_values(runtime);
}

}  // namespace deltaport::checkpoint
