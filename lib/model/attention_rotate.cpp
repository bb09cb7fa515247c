// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/attention_packs.hpp"
#include "model/attention_project.hpp"
#include "model/column_sum.hpp"
#include "model/norm_row.hpp"

namespace deltaport {
namespace {

template <class A>
struct RotationTable {
  std::int64_t half;
  double log_theta;
  const std::int32_t* positions;
  std::int64_t offset;
  A* table;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t t = index / half, i = index % half;
    const std::int64_t position = (positions == nullptr ? 0 : positions[t]) + offset;
    const double angle = static_cast<double>(position) *
                         Kokkos::exp(-log_theta * static_cast<double>(i) / static_cast<double>(half));
    table[2 * half * t + i] = static_cast<A>(Kokkos::cos(angle));
    table[2 * half * t + half + i] = static_cast<A>(Kokkos::sin(angle));
  }
};

/// One token, all heads.
template <class T>
struct NormAndRotate {
  using A = Accumulate<T>;
  AttentionLayout layout;
  HeadNorms<T> norms;
  const T* projections;
  const A* table;
  T* q;
  T* k;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t t = team.league_rank(), hd = layout.head_dim;
    const T* row = projections + t * layout.width();
    for (std::int64_t h = 0; h < layout.heads; ++h)
      one_head(team, t, row + layout.query_offset(h), norms.query_weight, q + (t * layout.heads + h) * hd);
    for (std::int64_t h = 0; h < layout.kv_heads; ++h)
      one_head(team, t, row + layout.key_offset(h), norms.key_weight, k + (t * layout.kv_heads + h) * hd);
  }

  KOKKOS_FORCEINLINE_FUNCTION void one_head(const TeamMember& team, std::int64_t t, const T* in, const T* w,
                                            T* out) const {
    const std::int64_t hd = layout.head_dim, half = layout.rotary_dim / 2;
    const A* cosine = table + t * layout.rotary_dim;
    const A* sine = cosine + half;
    const A rstd = reciprocal_rms<A>(team, hd, in, static_cast<A>(norms.eps));
    row_for(team, half, [=](const std::int64_t i) {
      const A a = widen(in[i]) * rstd * (A(1) + widen(w[i]));
      const A b = widen(in[half + i]) * rstd * (A(1) + widen(w[half + i]));
      out[i] = static_cast<T>(a * cosine[i] - b * sine[i]);
      out[half + i] = static_cast<T>(b * cosine[i] + a * sine[i]);
    });
    row_for(team, hd - 2 * half, [=](const std::int64_t i) {
      out[2 * half + i] = static_cast<T>(widen(in[2 * half + i]) * rstd * (A(1) + widen(w[2 * half + i])));
    });
  }
};

/// One head (query heads first, then key heads) of a block of tokens.
template <class T, class D>
struct NormAndRotateBackward {
  using A = Accumulate<T>;
  AttentionLayout layout;
  HeadNorms<T> norms;
  std::int64_t tokens;
  const T* projections;
  const A* table;
  D* dq;
  D* dk;
  T* d_projections;
  A* query_partial;  // [blocks, heads, head_dim]
  A* key_partial;    // [blocks, kv_heads, head_dim]

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t all = layout.heads + layout.kv_heads, hd = layout.head_dim;
    const std::int64_t block = team.league_rank() / all, index = team.league_rank() % all;
    const bool query = index < layout.heads;
    const std::int64_t h = query ? index : index - layout.heads;
    const std::int64_t count = query ? layout.heads : layout.kv_heads;
    const std::int64_t offset = query ? layout.query_offset(h) : layout.key_offset(h);
    const T* w = query ? norms.query_weight : norms.key_weight;
    A* share = (query ? query_partial : key_partial) + (block * count + h) * hd;
    row_for(team, hd, [=](const std::int64_t i) { share[i] = A(0); });
    const std::int64_t begin = block * gradient_block_rows;
    const std::int64_t end = begin + gradient_block_rows < tokens ? begin + gradient_block_rows : tokens;
    for (std::int64_t t = begin; t < end; ++t) {
      D* grad = (query ? dq : dk) + (t * count + h) * hd;
      rotate_back(team, t, grad);
      const T* in = projections + t * layout.width() + offset;
      const A rstd = reciprocal_rms<A>(team, hd, in, static_cast<A>(norms.eps));
      norm_row_backward<A>(team, hd, in, rstd, w, static_cast<const D*>(grad), static_cast<const T*>(nullptr),
                           d_projections + t * layout.width() + offset, share);
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void rotate_back(const TeamMember& team, std::int64_t t, D* grad) const {
    const std::int64_t half = layout.rotary_dim / 2;
    const A* cosine = table + t * layout.rotary_dim;
    const A* sine = cosine + half;
    row_for(team, half, [=](const std::int64_t i) {
      const A a = widen(grad[i]), b = widen(grad[half + i]);
      grad[i] = static_cast<D>(a * cosine[i] + b * sine[i]);
      grad[half + i] = static_cast<D>(b * cosine[i] - a * sine[i]);
    });
  }
};

}  // namespace

template <class T>
void rotation_table(Runtime& runtime, std::int64_t tokens, std::int64_t rotary_dim, double theta,
                    const std::int32_t* positions, std::int64_t offset, Accumulate<T>* table) {
  const std::int64_t half = rotary_dim / 2;
  for_each_index(runtime.compute(), "deltaport: rotation table", tokens * half,
                 RotationTable<Accumulate<T>>{half, Kokkos::log(theta), positions, offset, table});
}

namespace {

/// Pairs of packs are rotated together.
bool rotates_by_packs(const AttentionLayout& layout, std::initializer_list<const void*> pointers) {
  return layout.head_dim <= widest_row && layout.rotary_dim % (2 * pack_width) == 0 &&
         packable(layout.head_dim, pointers);
}

}  // namespace

template <class T>
void norm_and_rotate(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout,
                     const HeadNorms<T>& norms, const T* projections, const Accumulate<T>* table, T* q,
                     T* k) {
  const int lanes = row_lanes(layout.head_dim);
  const PackedNormAndRotate<T> packed{lanes, tokens, layout, norms, projections, table, q, k};
  if (rotates_by_packs(layout, {projections, norms.query_weight, norms.key_weight, table, q, k}))
    for_each_group(runtime.compute(), "deltaport: q/k norm and rotation", packed.groups(), lanes, packed);
  else
    for_each_row(runtime.compute(), "deltaport: q/k norm and rotation", tokens,
                 NormAndRotate<T>{layout, norms, projections, table, q, k});
}

template <class T, class D>
void norm_and_rotate_backward(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout,
                              const HeadNorms<T>& norms, const T* projections, const Accumulate<T>* table,
                              D* dq, D* dk, T* d_projections, Accumulate<T>* d_query_weight,
                              Accumulate<T>* d_key_weight) {
  using A = Accumulate<T>;
  const std::int64_t blocks = gradient_blocks(tokens), hd = layout.head_dim;
  const auto query = runtime.allocate<A>("attention q_norm partial", Shape{blocks * layout.heads, hd});
  const auto key = runtime.allocate<A>("attention k_norm partial", Shape{blocks * layout.kv_heads, hd});
  const int lanes = row_lanes(hd);
  const PackedNormAndRotateBackward<T, D> packed{
      lanes, tokens, layout, norms, projections, table, dq, dk, d_projections, query.data(), key.data()};
  if (rotates_by_packs(layout,
                       {projections, norms.query_weight, norms.key_weight, table, dq, dk, d_projections}))
    for_each_group(runtime.compute(), "deltaport: q/k norm and rotation backward", packed.groups(), lanes,
                   packed);
  else
    for_each_row(runtime.compute(), "deltaport: q/k norm and rotation backward",
                 blocks * (layout.heads + layout.kv_heads),
                 NormAndRotateBackward<T, D>{layout, norms, tokens, projections, table, dq, dk, d_projections,
                                             query.data(), key.data()});
  add_column_sums<A>(runtime, blocks * layout.heads, hd, query.data(), d_query_weight);
  add_column_sums<A>(runtime, blocks * layout.kv_heads, hd, key.data(), d_key_weight);
}

#define DELTAPORT_INSTANTIATE(T)                                                                        \
  template void rotation_table<T>(Runtime&, std::int64_t, std::int64_t, double, const std::int32_t*,    \
                                  std::int64_t, Accumulate<T>*);                                        \
  template void norm_and_rotate<T>(Runtime&, std::int64_t, const AttentionLayout&, const HeadNorms<T>&, \
                                   const T*, const Accumulate<T>*, T*, T*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

#define DELTAPORT_INSTANTIATE(T, D)                                                                         \
  template void norm_and_rotate_backward<T, D>(Runtime&, std::int64_t, const AttentionLayout&,              \
                                               const HeadNorms<T>&, const T*, const Accumulate<T>*, D*, D*, \
                                               T*, Accumulate<T>*, Accumulate<T>*);
DELTAPORT_INSTANTIATE(bfloat16, bfloat16)
DELTAPORT_INSTANTIATE(bfloat16, float)
DELTAPORT_INSTANTIATE(float, float)
DELTAPORT_INSTANTIATE(double, double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
