// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/model/gates.hpp"
#include "model/column_sum.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t block_tokens = runs_on_host ? 64 : 8;

template <class T>
struct GatesForward {
  const T* b;
  std::int64_t b_stride;
  const T* a;
  std::int64_t a_stride;
  const Accumulate<T>* a_log;
  const Accumulate<T>* dt_bias;
  std::int64_t heads;
  Accumulate<T>* g;
  Accumulate<T>* beta;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    using A = Accumulate<T>;
    const std::int64_t t = i / heads;
    const std::int64_t h = i % heads;
    beta[i] = sigmoid(static_cast<A>(b[t * b_stride + h]));
    const A x = static_cast<A>(a[t * a_stride + h]) + dt_bias[h];
    g[i] = -Kokkos::exp(a_log[h]) * softplus(x);
  }
};

// One index per block of tokens and head, heads next to each other.
template <class T>
struct GatesBackward {
  GatesForward<T> in;
  std::int64_t tokens;
  const Accumulate<T>* dg;
  const Accumulate<T>* dbeta;
  T* db;
  std::int64_t db_stride;
  T* da;
  std::int64_t da_stride;
  Accumulate<T>* of_log_partial;   // [blocks, heads]
  Accumulate<T>* of_bias_partial;  // [blocks, heads]

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    using A = Accumulate<T>;
    const std::int64_t block = i / in.heads, h = i - block * in.heads, begin = block * block_tokens;
    const std::int64_t end = begin + block_tokens < tokens ? begin + block_tokens : tokens;
    const A decay = -Kokkos::exp(in.a_log[h]);
    A of_log = 0;
    A of_bias = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t at = t * in.heads + h;
      const A beta = sigmoid(static_cast<A>(in.b[t * in.b_stride + h]));
      db[t * db_stride + h] = static_cast<T>(dbeta[at] * beta * (A(1) - beta));
      const A x = static_cast<A>(in.a[t * in.a_stride + h]) + in.dt_bias[h];
      const A slope = dg[at] * decay * sigmoid(x);
      da[t * da_stride + h] = static_cast<T>(slope);
      of_log += dg[at] * decay * softplus(x);
      of_bias += slope;
    }
    of_log_partial[i] = of_log;
    of_bias_partial[i] = of_bias;
  }
};

template <class T>
void validate(const char* where, const ColumnSlice<T>& b, const ColumnSlice<T>& a,
              const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias) {
  const std::int64_t heads = a_log.size();
  DELTAPORT_VALIDATE(dt_bias.size() == heads && b.width == heads && a.width == heads, ShapeError, where,
                     ": a_log has ", heads, " heads, dt_bias ", dt_bias.size(), ", b ", b.width, ", a ",
                     a.width);
  DELTAPORT_VALIDATE(b.rows() == a.rows(), ShapeError, where, ": b has ", b.rows(), " tokens, a ", a.rows());
}

}  // namespace

template <class T>
GdnGates<T> gdn_gates_forward(Runtime& runtime, const ColumnSlice<T>& b, const ColumnSlice<T>& a,
                              const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: gdn_gates forward");
  validate("gdn_gates_forward", b, a, a_log, dt_bias);
  const Shape shape{b.rows(), a_log.size()};
  GdnGates<T> gates{runtime.allocate<Accumulate<T>>("gdn g", shape),
                    runtime.allocate<Accumulate<T>>("gdn beta", shape)};
  for_each_index(runtime.compute(), "deltaport: gdn_gates forward", shape.size(),
                 GatesForward<T>{b.data(), b.stride(), a.data(), a.stride(), a_log.data(), dt_bias.data(),
                                 shape[1], gates.g.data(), gates.beta.data()});
  return gates;
}

template <class T>
void gdn_gates_backward(Runtime& runtime, const ColumnSlice<T>& b, const ColumnSlice<T>& a,
                        const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias,
                        const Tensor<Accumulate<T>>& dg, const Tensor<Accumulate<T>>& dbeta,
                        const ColumnSlice<T>& db, const ColumnSlice<T>& da,
                        const Tensor<Accumulate<T>>& da_log, const Tensor<Accumulate<T>>& ddt_bias) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: gdn_gates backward");
  validate("gdn_gates_backward", b, a, a_log, dt_bias);
  validate("gdn_gates_backward (gradients)", db, da, da_log, ddt_bias);
  const std::int64_t tokens = b.rows();
  const std::int64_t heads = a_log.size();
  DELTAPORT_VALIDATE(dg.size() == tokens * heads && dbeta.size() == tokens * heads && db.rows() == tokens,
                     ShapeError, "gdn_gates_backward: dg has shape ", dg.shape().str(), ", dbeta ",
                     dbeta.shape().str(), " for ", tokens, " tokens of ", heads, " heads");
  const std::int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  const auto partial = runtime.allocate<Accumulate<T>>("gate partials", Shape{2, blocks, heads});
  Accumulate<T>* const of_log = partial.data();
  Accumulate<T>* const of_bias = of_log + blocks * heads;
  const GatesForward<T> in{b.data(),       b.stride(), a.data(), a.stride(), a_log.data(),
                           dt_bias.data(), heads,      nullptr,  nullptr};
  for_each_index(runtime.compute(), "deltaport: gdn_gates backward", blocks * heads,
                 GatesBackward<T>{in, tokens, dg.data(), dbeta.data(), db.data(), db.stride(), da.data(),
                                  da.stride(), of_log, of_bias});
  add_column_sums(runtime, blocks, heads, of_log, da_log.data());
  add_column_sums(runtime, blocks, heads, of_bias, ddt_bias.data());
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template GdnGates<T> gdn_gates_forward<T>(Runtime&, const ColumnSlice<T>&, const ColumnSlice<T>&,      \
                                            const Tensor<Accumulate<T>>&, const Tensor<Accumulate<T>>&); \
  template void gdn_gates_backward<T>(Runtime&, const ColumnSlice<T>&, const ColumnSlice<T>&,            \
                                      const Tensor<Accumulate<T>>&, const Tensor<Accumulate<T>>&,        \
                                      const Tensor<Accumulate<T>>&, const Tensor<Accumulate<T>>&,        \
                                      const ColumnSlice<T>&, const ColumnSlice<T>&,                      \
                                      const Tensor<Accumulate<T>>&, const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
