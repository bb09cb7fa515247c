// SPDX-License-Identifier: Apache-2.0
#include "train/first_difference.hpp"

#include <limits>

namespace deltaport::train {
namespace {

/// Bits, not values: -0 is not 0, and a NaN is itself.
template <class Word>
struct FindDifference {
  const Word* a;
  const Word* b;
  KOKKOS_FUNCTION void operator()(std::int64_t i, std::int64_t& first) const {
    if (a[i] != b[i] && i < first) first = i;
  }
};

template <int bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using type = std::uint64_t;
};

}  // namespace

template <class T>
std::int64_t first_difference(const ExecutionSpace& exec, const Tensor<T>& a, const Tensor<T>& b) {
  using Word = typename WordOf<sizeof(T)>::type;
  DELTAPORT_VALIDATE(a.size() == b.size(), ShapeError, "comparing ", a.shape().str(), " with ",
                     b.shape().str());
  if (a.size() == 0) return -1;
  constexpr auto none = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = none;
  Kokkos::parallel_reduce(
      "deltaport: first difference",
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, a.size()),
      FindDifference<Word>{reinterpret_cast<const Word*>(a.data()), reinterpret_cast<const Word*>(b.data())},
      Kokkos::Min<std::int64_t>(first));
  exec.fence("deltaport: first difference");
  return first == none ? -1 : first;
}

template std::int64_t first_difference<bfloat16>(const ExecutionSpace&, const Tensor<bfloat16>&,
                                                 const Tensor<bfloat16>&);
template std::int64_t first_difference<float>(const ExecutionSpace&, const Tensor<float>&,
                                              const Tensor<float>&);
template std::int64_t first_difference<double>(const ExecutionSpace&, const Tensor<double>&,
                                               const Tensor<double>&);

}  // namespace deltaport::train
