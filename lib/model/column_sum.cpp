// SPDX-License-Identifier: Apache-2.0
#include "model/column_sum.hpp"

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"

namespace deltaport {
namespace {

/// One index sums a strip of columns, so that host loops run along rows.
template <class T>
struct ColumnStripSum {
  static constexpr int strip = runs_on_host ? 32 : 1;
  std::int64_t rows, columns;
  const Accumulate<T>* partial;
  T* target;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t begin = index * strip;
    const int width = static_cast<int>(begin + strip < columns ? strip : columns - begin);
    Accumulate<T> sum[strip] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      const Accumulate<T>* row = partial + r * columns + begin;
      for (int c = 0; c < width; ++c) sum[c] += row[c];
    }
    for (int c = 0; c < width; ++c) target[begin + c] += static_cast<T>(sum[c]);
  }
};

}  // namespace

template <class T>
void add_column_sums(Runtime& runtime, std::int64_t rows, std::int64_t columns, const Accumulate<T>* partial,
                     T* target) {
  constexpr std::int64_t strip = ColumnStripSum<T>::strip;
  for_each_index(runtime.compute(), "deltaport: add column sums", (columns + strip - 1) / strip,
                 ColumnStripSum<T>{rows, columns, partial, target});
}

template void add_column_sums<float>(Runtime&, std::int64_t, std::int64_t, const float*, float*);
template void add_column_sums<double>(Runtime&, std::int64_t, std::int64_t, const double*, double*);

}  // namespace deltaport
