// SPDX-License-Identifier: Apache-2.0
#include "model/column_sum.hpp"

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/column_sum_packs.hpp"

namespace deltaport {
namespace {

/// One index sums a strip of columns, so that host loops run along rows.
template <class A>
struct ColumnStripSum {
  static constexpr int strip = runs_on_host ? 32 : 1;
  std::int64_t rows, columns;
  const A* partial;
  A* target;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t begin = index * strip;
    const int width = static_cast<int>(begin + strip < columns ? strip : columns - begin);
    A sum[strip] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      const A* row = partial + r * columns + begin;
      for (int c = 0; c < width; ++c) sum[c] += row[c];
    }
    for (int c = 0; c < width; ++c) target[begin + c] += sum[c];
  }
};

}  // namespace

template <class A>
void add_column_sums(Runtime& runtime, std::int64_t rows, std::int64_t columns, const A* partial, A* target) {
  using Sum = PackedColumnSum<A>;
  if (!runs_on_host && columns % Sum::W == 0 && reinterpret_cast<std::uintptr_t>(partial) % 16 == 0) {
    const auto enqueue = [&](const Sum& sum) {
      for_each_group(runtime.compute(), "deltaport: add column sums", sum.groups(), Sum::lanes, sum);
    };
    if (rows <= 2 * Sum::slab_rows) return enqueue({rows, columns, rows, partial, target, Sum::Sums::add});
    Sum first{rows, columns, Sum::slab_rows, partial, nullptr, Sum::Sums::write};
    const auto sums = runtime.allocate<A>("column sums", Shape{first.slabs(), columns});
    first.sums = sums.data();
    enqueue(first);
    return enqueue({first.slabs(), columns, first.slabs(), sums.data(), target, Sum::Sums::add});
  }
  constexpr std::int64_t strip = ColumnStripSum<A>::strip;
  for_each_index(runtime.compute(), "deltaport: add column sums", (columns + strip - 1) / strip,
                 ColumnStripSum<A>{rows, columns, partial, target});
}

template void add_column_sums<float>(Runtime&, std::int64_t, std::int64_t, const float*, float*);
template void add_column_sums<double>(Runtime&, std::int64_t, std::int64_t, const double*, double*);

}  // namespace deltaport
