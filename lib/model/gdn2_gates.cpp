// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/model/gates.hpp"
#include "model/column_sum.hpp"
#include "model/gdn2_gates_packs.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t block_tokens = runs_on_host ? 32 : 8;

template <class T>
struct DecayGate {
  const T* f;
  std::int64_t stride;
  const Accumulate<T>* a_log;
  const Accumulate<T>* dt_bias;
  std::int64_t key_dim;

  /// -exp(A_log) of a key head.
  KOKKOS_FORCEINLINE_FUNCTION Accumulate<T> rate(std::int64_t head) const {
    return -Kokkos::exp(a_log[head]);
  }
};

// One team per token: the log decay by key heads, then both sigmoid gates.
template <class T>
struct GatesForward {
  DecayGate<T> decay;
  QkvShape shape;
  const T* b_in;
  std::int64_t b_stride;
  const T* w_in;
  std::int64_t w_stride;
  Accumulate<T>* g;
  T* b;
  T* w;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    using A = Accumulate<T>;
    const std::int64_t t = team.league_rank();
    const std::int64_t keys = shape.keys();
    for (std::int64_t h = 0; h < shape.key_heads; ++h) {
      const A rate = decay.rate(h);
      const T* f = decay.f + t * decay.stride + h * shape.key_dim;
      const A* bias = decay.dt_bias + h * shape.key_dim;
      A* to = g + t * keys + h * shape.key_dim;
      row_for(team, shape.key_dim,
              [=](std::int64_t c) { to[c] = rate * softplus(static_cast<A>(f[c]) + bias[c]); });
    }
    sigmoid_row(team, keys, b_in + t * b_stride, b + t * keys);
    sigmoid_row(team, shape.values(), w_in + t * w_stride, w + t * shape.values());
  }
  static KOKKOS_FORCEINLINE_FUNCTION void sigmoid_row(const TeamMember& team, std::int64_t n, const T* from,
                                                      T* to) {
    row_for(team, n, [=](std::int64_t c) { to[c] = static_cast<T>(sigmoid(widen(from[c]))); });
  }
};

// One team per block of tokens and key head: gradients of the log decay. Lanes keep their channels' sums.
template <class T>
struct DecayBackward {
  DecayGate<T> decay;
  std::int64_t tokens;
  std::int64_t key_heads;
  const Accumulate<T>* dg;
  T* df;
  std::int64_t df_stride;
  Accumulate<T>* of_log_channels;  // [blocks, H K], of A_log by channel
  Accumulate<T>* of_log_partial;   // [blocks, H]
  Accumulate<T>* of_bias_partial;  // [blocks, H K]

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    using A = Accumulate<T>;
    const std::int64_t block = team.league_rank() / key_heads;
    const std::int64_t h = team.league_rank() % key_heads;
    const std::int64_t keys = key_heads * decay.key_dim;
    const std::int64_t begin = block * block_tokens;
    const std::int64_t end = begin + block_tokens < tokens ? begin + block_tokens : tokens;
    const A rate = decay.rate(h);
    const std::int64_t first = h * decay.key_dim;
    A* of_log = of_log_channels + block * keys + first;
    A* of_bias = of_bias_partial + block * keys + first;
    const A* bias = decay.dt_bias + first;
    row_for(team, decay.key_dim, [=](std::int64_t c) { of_log[c] = of_bias[c] = A(0); });
    for (std::int64_t t = begin; t < end; ++t) {
      const T* f = decay.f + t * decay.stride + first;
      const A* d = dg + t * keys + first;
      T* to = df + t * df_stride + first;
      row_for(team, decay.key_dim, [=](std::int64_t c) {
        const A x = static_cast<A>(f[c]) + bias[c];
        const A scaled = d[c] * rate;
        const A slope = scaled * sigmoid(x);
        to[c] = static_cast<T>(slope);
        of_log[c] += scaled * softplus(x);
        of_bias[c] += slope;
      });
    }
    const A sum = row_sum<A>(team, decay.key_dim, [=](std::int64_t c) { return of_log[c]; });
    A* target = of_log_partial + block * key_heads + h;
    Kokkos::single(Kokkos::PerThread(team), [=]() { *target = sum; });
  }
};

// One team per token: through both sigmoids, from their outputs.
template <class T>
struct SigmoidBackward {
  std::int64_t keys;
  std::int64_t values;
  const T* b;
  const T* w;
  const T* db_out;
  const T* dw_out;
  T* db;
  std::int64_t db_stride;
  T* dw;
  std::int64_t dw_stride;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t t = team.league_rank();
    through(team, keys, b + t * keys, db_out + t * keys, db + t * db_stride);
    through(team, values, w + t * values, dw_out + t * values, dw + t * dw_stride);
  }
  static KOKKOS_FORCEINLINE_FUNCTION void through(const TeamMember& team, std::int64_t n, const T* s,
                                                  const T* d, T* to) {
    using A = Accumulate<T>;
    row_for(team, n, [=](std::int64_t c) {
      const A open = widen(s[c]);
      to[c] = static_cast<T>(widen(d[c]) * open * (A(1) - open));
    });
  }
};

template <class T>
void validate(const char* where, const QkvShape& shape, const ColumnSlice<T>& f, const ColumnSlice<T>& b,
              const ColumnSlice<T>& w, const Tensor<Accumulate<T>>& a_log,
              const Tensor<Accumulate<T>>& dt_bias) {
  DELTAPORT_VALIDATE(f.width == shape.keys() && b.width == shape.keys() && w.width == shape.values(),
                     ShapeError, where, ": f, b, w have ", f.width, ", ", b.width, ", ", w.width,
                     " columns, expected ", shape.keys(), ", ", shape.keys(), ", ", shape.values());
  DELTAPORT_VALIDATE(f.rows() == b.rows() && f.rows() == w.rows(), ShapeError, where, ": f, b, w have ",
                     f.rows(), ", ", b.rows(), ", ", w.rows(), " tokens");
  DELTAPORT_VALIDATE(a_log.size() == shape.key_heads && dt_bias.size() == shape.keys(), ShapeError, where,
                     ": a_log has ", a_log.size(), " entries and dt_bias ", dt_bias.size(), ", expected ",
                     shape.key_heads, " and ", shape.keys());
}

}  // namespace

template <class T>
Gdn2Gates<T> gdn2_gates_forward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& f,
                                const ColumnSlice<T>& b, const ColumnSlice<T>& w,
                                const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: gdn2_gates forward");
  validate("gdn2_gates_forward", shape, f, b, w, a_log, dt_bias);
  const Shape by_key{f.rows(), shape.key_heads, shape.key_dim};
  Gdn2Gates<T> gates;
  gates.g = runtime.allocate<Accumulate<T>>("gdn2 g", by_key);
  gates.b = runtime.allocate<T>("gdn2 b", by_key);
  gates.w = runtime.allocate<T>("gdn2 w", Shape{f.rows(), shape.value_heads, shape.value_dim});
  if (packable(shape.key_dim, {f.data(), b.data(), dt_bias.data(), gates.g.data(), gates.b.data()},
               {f.stride(), b.stride()}) &&
      packable(shape.values(), {w.data(), gates.w.data()}, {w.stride()})) {
    const PackedGdn2Gates<T> packed{shape.keys(),   shape.values(), shape.key_dim,  f.data(),
                                    b.data(),       w.data(),       f.stride(),     b.stride(),
                                    w.stride(),     a_log.data(),   dt_bias.data(), gates.g.data(),
                                    gates.b.data(), gates.w.data()};
    for_each_index(runtime.compute(), "deltaport: gdn2_gates forward", f.rows() * packed.packs(), packed);
    return gates;
  }
  for_each_row(runtime.compute(), "deltaport: gdn2_gates forward", f.rows(),
               GatesForward<T>{{f.data(), f.stride(), a_log.data(), dt_bias.data(), shape.key_dim},
                               shape,
                               b.data(),
                               b.stride(),
                               w.data(),
                               w.stride(),
                               gates.g.data(),
                               gates.b.data(),
                               gates.w.data()});
  return gates;
}

template <class T>
void gdn2_gates_backward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& f, const Tensor<T>& b,
                         const Tensor<T>& w, const Tensor<Accumulate<T>>& a_log,
                         const Tensor<Accumulate<T>>& dt_bias, const Gdn2GateGradients<T>& gradients,
                         const ColumnSlice<T>& df, const ColumnSlice<T>& db, const ColumnSlice<T>& dw,
                         const Tensor<Accumulate<T>>& da_log, const Tensor<Accumulate<T>>& ddt_bias) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: gdn2_gates backward");
  validate("gdn2_gates_backward", shape, df, db, dw, a_log, dt_bias);
  validate("gdn2_gates_backward (gradients)", shape, f, db, dw, da_log, ddt_bias);
  const std::int64_t tokens = f.rows();
  const std::int64_t keys = shape.keys();
  DELTAPORT_VALIDATE(b.size() == tokens * keys && gradients.dg.size() == b.size() &&
                         gradients.db.size() == b.size() && w.size() == tokens * shape.values() &&
                         gradients.dw.size() == w.size(),
                     ShapeError, "gdn2_gates_backward: gates or gradients do not fit ", tokens, " tokens");
  const std::int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  const auto partial = runtime.allocate<Accumulate<T>>("gate partials", Shape{2, blocks, keys});
  const auto of_log =
      runtime.allocate<Accumulate<T>>("gate partials of A_log", Shape{blocks, shape.key_heads});
  Accumulate<T>* const of_bias = partial.data() + blocks * keys;
  const DecayGate<T> decay{f.data(), f.stride(), a_log.data(), dt_bias.data(), shape.key_dim};
  if (shape.key_dim <= widest_row &&
      packable(shape.key_dim, {f.data(), dt_bias.data(), gradients.dg.data(), df.data(), of_bias},
               {f.stride(), df.stride()})) {
    const int lanes = row_lanes(shape.key_dim);
    const PackedDecayBackward<T> packed{
        lanes,     tokens,      block_tokens,  shape.key_heads, shape.key_dim,
        f.data(),  f.stride(),  a_log.data(),  dt_bias.data(),  gradients.dg.data(),
        df.data(), df.stride(), of_log.data(), of_bias};
    for_each_group(runtime.compute(), "deltaport: gdn2_gates decay backward", packed.groups(), lanes, packed);
  } else {
    for_each_row(runtime.compute(), "deltaport: gdn2_gates decay backward", blocks * shape.key_heads,
                 DecayBackward<T>{decay, tokens, shape.key_heads, gradients.dg.data(), df.data(), df.stride(),
                                  partial.data(), of_log.data(), of_bias});
  }
  const SigmoidBackward<T> sigmoids{
      keys,      shape.values(), b.data(),  w.data(),   gradients.db.data(), gradients.dw.data(),
      db.data(), db.stride(),    dw.data(), dw.stride()};
  if (packable(keys, {b.data(), gradients.db.data(), db.data()}, {db.stride()}) &&
      packable(shape.values(), {w.data(), gradients.dw.data(), dw.data()}, {dw.stride()})) {
    const PackedSigmoidBackward<T> packed{
        keys,      shape.values(), b.data(),    w.data(),   gradients.db.data(), gradients.dw.data(),
        db.data(), dw.data(),      db.stride(), dw.stride()};
    for_each_index(runtime.compute(), "deltaport: gdn2_gates sigmoid backward", tokens * packed.packs(),
                   packed);
  } else {
    for_each_row(runtime.compute(), "deltaport: gdn2_gates sigmoid backward", tokens, sigmoids);
  }
  add_column_sums(runtime, blocks, keys, of_bias, ddt_bias.data());
  add_column_sums(runtime, blocks, shape.key_heads, of_log.data(), da_log.data());
}

#define DELTAPORT_INSTANTIATE(T)                                                                            \
  template Gdn2Gates<T> gdn2_gates_forward<T>(Runtime&, const QkvShape&, const ColumnSlice<T>&,             \
                                              const ColumnSlice<T>&, const ColumnSlice<T>&,                 \
                                              const Tensor<Accumulate<T>>&, const Tensor<Accumulate<T>>&);  \
  template void gdn2_gates_backward<T>(Runtime&, const QkvShape&, const ColumnSlice<T>&, const Tensor<T>&,  \
                                       const Tensor<T>&, const Tensor<Accumulate<T>>&,                      \
                                       const Tensor<Accumulate<T>>&, const Gdn2GateGradients<T>&,           \
                                       const ColumnSlice<T>&, const ColumnSlice<T>&, const ColumnSlice<T>&, \
                                       const Tensor<Accumulate<T>>&, const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
