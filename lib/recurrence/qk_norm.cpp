// SPDX-License-Identifier: Apache-2.0
#include "recurrence/qk_norm.hpp"

#include "deltaport/core/parallel.hpp"

namespace deltaport::recurrence {
namespace {

// Sixteen partial sums, so that compilers may use vectors without changing the order of additions.
template <class A, class F>
KOKKOS_INLINE_FUNCTION A host_sum(int n, const F& f) {
  constexpr int lanes = 16;
  A sum[lanes] = {};
  int i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int l = 0; l < lanes; ++l) sum[l] += f(i + l);
  for (int l = 0; i + l < n; ++l) sum[l] += f(i + l);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sum[l] += sum[l + half];
  return sum[0];
}

/// Sum of f(i) over [0, n), the same value on all lanes, in one fixed order.
template <class A, class F>
KOKKOS_INLINE_FUNCTION A row_sum(const TeamMember& team, int n, const F& f) {
  A total = 0;
  KOKKOS_IF_ON_HOST((static_cast<void>(team); total = host_sum<A>(n, f);))
  KOKKOS_IF_ON_DEVICE((Kokkos::parallel_reduce(
                           Kokkos::ThreadVectorRange(team, n), [&](int i, A& sum) { sum += f(i); }, total);))
  return total;
}

template <class T>
struct Square {
  const T* x;
  KOKKOS_INLINE_FUNCTION Accumulate<T> operator()(int i) const {
    const auto value = static_cast<Accumulate<T>>(x[i]);
    return value * value;
  }
};

template <class T>
struct Product {
  const T* x;
  const Accumulate<T>* y;
  KOKKOS_INLINE_FUNCTION Accumulate<T> operator()(int i) const {
    return static_cast<Accumulate<T>>(x[i]) * y[i];
  }
};

template <class T>
KOKKOS_INLINE_FUNCTION Accumulate<T> inverse_norm(const TeamMember& team, int n, const T* x) {
  using A = Accumulate<T>;
  return A(1) / Kokkos::sqrt(row_sum<A>(team, n, Square<T>{x}) + A(1e-6));
}

template <class T>
struct Normalise {
  using A = Accumulate<T>;
  const T* x;
  int width;
  A* y;

  KOKKOS_INLINE_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t at = std::int64_t{team.league_rank()} * width;
    const T* in = x + at;
    A* out = y + at;
    const A rstd = inverse_norm(team, width, in);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, width),
                         [=](int i) { out[i] = rstd * static_cast<A>(in[i]); });
  }
};

template <class T>
struct NormaliseGradient {
  using A = Accumulate<T>;
  Extents extents;
  const T* x;
  const A* dy;
  int heads, width;
  T* dx;

  KOKKOS_INLINE_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t row = team.league_rank();
    const bool covered = extents.covers(row / heads);
    const T* in = x + row * width;
    const A* d_value = dy + row * width;
    T* out = dx + row * width;
    const A rstd = inverse_norm(team, width, in);
    const A along = rstd * row_sum<A>(team, width, Product<T>{in, d_value});
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, width), [=](int i) {
      const A value = rstd * (d_value[i] - along * (rstd * static_cast<A>(in[i])));
      out[i] = covered ? static_cast<T>(value) : T(0);
    });
  }
};

}  // namespace

template <class T>
Tensor<Plain<T>> l2_normalised(Runtime& runtime, const char* name, const Tensor<T>& x) {
  auto y = runtime.allocate<Plain<T>>(name, x.shape());
  const auto width = static_cast<int>(x.extent(3));
  for_each_row(runtime.compute(), "deltaport: recurrence l2 norm", x.size() / width,
               Normalise<T>{x.data(), width, y.data()});
  return y;
}

template <class T>
Tensor<T> l2_gradient(Runtime& runtime, const Extents& extents, const char* name, const Tensor<T>& x,
                      const Tensor<Plain<T>>& dy) {
  auto dx = runtime.allocate<T>(name, x.shape());
  const auto width = static_cast<int>(x.extent(3));
  for_each_row(runtime.compute(), "deltaport: recurrence l2 norm gradient", x.size() / width,
               NormaliseGradient<T>{extents, x.data(), dy.data(), extents.key_heads, width, dx.data()});
  return dx;
}

#define DELTAPORT_INSTANTIATE(T)                                                             \
  template Tensor<Plain<T>> l2_normalised<T>(Runtime&, const char*, const Tensor<T>&);       \
  template Tensor<T> l2_gradient<T>(Runtime&, const Extents&, const char*, const Tensor<T>&, \
                                    const Tensor<Plain<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence
