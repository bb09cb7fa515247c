// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/attention_packs.hpp"
#include "model/attention_project.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

/// One token, all heads.
template <class T>
struct ApplyGate {
  AttentionLayout layout;
  const T* projections;
  const T* o;
  T* y;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t t = team.league_rank(), hd = layout.head_dim;
    for (std::int64_t h = 0; h < layout.heads; ++h) {
      const T* gate = projections + t * layout.width() + layout.gate_offset(h);
      const T* in = o + (t * layout.heads + h) * hd;
      T* out = y + (t * layout.heads + h) * hd;
      row_for(team, hd,
              [=](const std::int64_t i) { out[i] = static_cast<T>(widen(in[i]) * sigmoid(widen(gate[i]))); });
    }
  }
};

template <class T>
struct ApplyGateBackward {
  using A = Accumulate<T>;
  AttentionLayout layout;
  std::int64_t tokens;
  const T* projections;
  const T* o;
  T* dy;
  T* y;
  T* d_projections;
  A* delta;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t t = team.league_rank(), hd = layout.head_dim;
    for (std::int64_t h = 0; h < layout.heads; ++h) {
      const std::int64_t gate_at = t * layout.width() + layout.gate_offset(h),
                         at = (t * layout.heads + h) * hd;
      const T* gate = projections + gate_at;
      T* d_gate = d_projections + gate_at;
      const T* in = o + at;
      T* grad = dy + at;
      T* out = y + at;
      row_for(team, hd, [=](const std::int64_t i) {
        const A s = sigmoid(widen(gate[i])), value = widen(in[i]), g = widen(grad[i]);
        out[i] = static_cast<T>(value * s);
        d_gate[i] = static_cast<T>(g * value * s * (A(1) - s));
        grad[i] = static_cast<T>(g * s);
      });
      const A dot = row_sum<A>(team, hd, [=](const std::int64_t i) { return widen(in[i]) * widen(grad[i]); });
      A* target = delta + h * tokens + t;
      Kokkos::single(Kokkos::PerThread(team), [=]() { *target = dot; });
    }
  }
};

}  // namespace

template <class T>
void apply_gate(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout, const T* projections,
                const T* o, T* y) {
  if (packable(layout.head_dim, {projections, o, y}))
    for_each_index(runtime.compute(), "deltaport: attention gate",
                   tokens * layout.heads * layout.head_dim / pack_width,
                   PackedGate<T>{layout, projections, o, y});
  else
    for_each_row(runtime.compute(), "deltaport: attention gate", tokens,
                 ApplyGate<T>{layout, projections, o, y});
}

template <class T>
void apply_gate_backward(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout,
                         const T* projections, const T* o, T* dy, T* y, T* d_projections,
                         Accumulate<T>* delta) {
  const int lanes = row_lanes(layout.head_dim);
  if (layout.head_dim <= widest_row && packable(layout.head_dim, {projections, o, dy, y, d_projections}))
    for_each_group(runtime.compute(), "deltaport: attention gate backward", tokens * layout.heads, lanes,
                   PackedGateBackward<T>{lanes, tokens, layout, projections, o, dy, y, d_projections, delta});
  else
    for_each_row(runtime.compute(), "deltaport: attention gate backward", tokens,
                 ApplyGateBackward<T>{layout, tokens, projections, o, dy, y, d_projections, delta});
}

#define DELTAPORT_INSTANTIATE(T)                                                                           \
  template void apply_gate<T>(Runtime&, std::int64_t, const AttentionLayout&, const T*, const T*, T*);     \
  template void apply_gate_backward<T>(Runtime&, std::int64_t, const AttentionLayout&, const T*, const T*, \
                                       T*, T*, T*, Accumulate<T>*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
