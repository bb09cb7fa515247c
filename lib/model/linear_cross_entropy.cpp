// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/linear_cross_entropy.hpp"

#include <algorithm>

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/cross_entropy_packs.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

enum class Want { loss, loss_and_gradient };

/// Largest of row[0..n): sixteen running maxima on hosts. NaN is passed over here and found by the sum.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T row_max(const TeamMember& team, std::int64_t n, const T* row) {
  if constexpr (runs_on_host) {
    (void)team;
    constexpr int lanes = 16;
    T best[lanes];
    for (int lane = 0; lane < lanes; ++lane) best[lane] = row[0];
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int lane = 0; lane < lanes; ++lane)
        best[lane] = row[i + lane] > best[lane] ? row[i + lane] : best[lane];
    for (; i < n; ++i) best[0] = row[i] > best[0] ? row[i] : best[0];
    for (int lane = 1; lane < lanes; ++lane) best[0] = best[lane] > best[0] ? best[lane] : best[0];
    return best[0];
  } else {
    T best = row[0];
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, n),
        [&](std::int64_t i, T& local) { local = row[i] > local ? row[i] : local; }, Kokkos::Max<T>(best));
    return best;
  }
}

/// Replaces row[i] by exp(row[i] - shift) and returns their sum. Vocabularies reach 250,000 entries: runs of
/// 1024 are summed in Accumulate<T>, the runs in double.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION double exponentials(const TeamMember& team, std::int64_t n, T* row, T shift) {
  using R = Accumulate<T>;
  double total = 0.0;
  if constexpr (runs_on_host) {
    constexpr std::int64_t run = 1024;
    for (std::int64_t begin = 0; begin < n; begin += run) {
      const std::int64_t count = begin + run < n ? run : n - begin;
      T* part = row + begin;
      row_for(team, count, [=](std::int64_t i) { part[i] = fast_exp(part[i] - shift); });
      total +=
          static_cast<double>(lane_sum<R>(count, [=](std::int64_t i) { return static_cast<R>(part[i]); }));
    }
  } else {
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, n),
        [&](std::int64_t i, double& local) {
          const T value = fast_exp(row[i] - shift);
          row[i] = value;
          local += static_cast<double>(value);
        },
        total);
  }
  return total;
}

template <class Body>
KOKKOS_FORCEINLINE_FUNCTION void team_row_for(const TeamMember& team, std::int64_t n, const Body& body) {
  if constexpr (runs_on_host)
    row_for(team, n, body);
  else
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, n), [&](std::int64_t i) { body(i); });
}

/// The products take gradients in T. Halves are packed at the start of the row of logits that they replace,
/// whose stride in elements is then twice as large: a buffer of their own would make the largest one half as
/// large again.
template <class T>
inline constexpr std::int64_t gradient_strides = sizeof(Accumulate<T>) / sizeof(T);
constexpr std::int64_t packed_run = 1024;
using AliasedHalf = std::uint16_t __attribute__((may_alias));

/// Rounds value(i) for i in [0, n) to the start of `row`, where value(i) may read row[i] itself: a run is
/// complete in scratch before it overwrites what earlier runs have read.
template <class T, class Value>
KOKKOS_FORCEINLINE_FUNCTION void pack_row(const TeamMember& team, std::int64_t n, Accumulate<T>* row,
                                          const Value& value) {
  const int level = 0;  // Kokkos takes it by reference
  T* packed = static_cast<T*>(team.team_scratch(level).get_shmem(packed_run * sizeof(T)));
  AliasedHalf* const out = reinterpret_cast<AliasedHalf*>(row);
  for (std::int64_t begin = 0; begin < n; begin += packed_run) {
    const std::int64_t count = begin + packed_run < n ? packed_run : n - begin;
    team_row_for(team, count, [=](std::int64_t i) { packed[i] = static_cast<T>(value(begin + i)); });
    team.team_barrier();
    team_row_for(team, count, [=](std::int64_t i) { out[begin + i] = packed[i].bits; });
    team.team_barrier();
  }
}

/// One row of logits: its loss, and the gradient (softmax - onehot) scale in its place.
template <class T>
struct CrossEntropyRow {
  using A = Accumulate<T>;
  std::int64_t vocab;
  Want want;
  const double* scale_of_gradients;  // null without them
  const std::int32_t* labels;
  A* logits;
  double* loss;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t r = team.league_rank();
    A* row = logits + r * vocab;
    const std::int64_t label = labels[r];
    double* out = loss + r;
    if (label == ignored_label) {
      if (want == Want::loss_and_gradient) team_row_for(team, vocab, [=](std::int64_t i) { row[i] = A(0); });
      Kokkos::single(Kokkos::PerTeam(team), [=]() { *out = 0.0; });
      return;
    }
    const bool known = label >= 0 && label < vocab;
    const A top = row_max(team, vocab, row);
    const A target = known ? row[label] : Kokkos::Experimental::quiet_NaN_v<A>;
    team.team_barrier();
    const double sum = exponentials(team, vocab, row, top);
    Kokkos::single(Kokkos::PerTeam(team), [=]() {
      *out = Kokkos::log(sum) + (static_cast<double>(top) - static_cast<double>(target));
    });
    if (want == Want::loss) return;
    const A scale = static_cast<A>(*scale_of_gradients);
    const A factor = static_cast<A>(static_cast<double>(scale) / sum);
    const A once = known ? scale : A(0);
    if constexpr (is_half<T>) {
      pack_row<T>(team, vocab, row,
                  [=](std::int64_t i) { return row[i] * factor - (i == label ? once : A(0)); });
    } else {
      team_row_for(team, vocab, [=](std::int64_t i) { row[i] *= factor; });
      team.team_barrier();
      if (known) Kokkos::single(Kokkos::PerTeam(team), [=]() { row[label] -= once; });
    }
  }
};

/// total[0] += sum of losses[0..n) in a fixed order, by one team.
struct AddLosses {
  std::int64_t n;
  const double* losses;
  double* total;
  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const double* values = losses;
    double* out = total;
    const double sum = row_sum<double>(team, n, [=](std::int64_t i) { return values[i]; });
    Kokkos::single(Kokkos::PerTeam(team), [=]() { *out += sum; });
  }
};

template <class T>
void enqueue_rows(Runtime& runtime, const Tensor<Accumulate<T>>& logits, const Tensor<std::int32_t>& labels,
                  const Tensor<double>& losses, const Tensor<double>& scale, Want want) {
  const std::int64_t rows = logits.extent(0);
  if (rows == 0) return;
  if (!runs_on_host && logits.extent(1) % PackedCrossEntropy<T>::W == 0) {
    const PackedCrossEntropy<T> packed{logits.extent(1), want == Want::loss ? nullptr : scale.data(),
                                       labels.data(), logits.data(), losses.data()};
    return enqueue_kernel("deltaport: cross-entropy",
                          TeamPolicy(runtime.compute(), static_cast<int>(rows), packed.threads, 1), packed);
  }
  TeamPolicy policy(runtime.compute(), static_cast<int>(rows), runs_on_host ? 1 : 8, runs_on_host ? 1 : 32);
  if constexpr (is_half<T>)
    policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(packed_run * sizeof(T)) + 64));
  enqueue_kernel(
      "deltaport: cross-entropy", policy,
      CrossEntropyRow<T>{logits.extent(1), want, scale.data(), labels.data(), logits.data(), losses.data()});
}

}  // namespace

template <class T>
LinearCrossEntropy<T>::LinearCrossEntropy(Parameter<T> weight, std::int64_t chunk_tokens)
    : weight_(weight), chunk_tokens_(chunk_tokens) {
  DELTAPORT_VALIDATE(weight.set != nullptr, Error, "linear cross-entropy needs a weight");
  DELTAPORT_VALIDATE(chunk_tokens > 0, ConfigError, "train.loss_chunk_tokens must be positive, got ",
                     chunk_tokens);
}

template <class T>
void LinearCrossEntropy<T>::validate(const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
                                     const Tensor<double>& loss_sum) const {
  const std::int64_t width = weight_.value().extent(1);
  DELTAPORT_VALIDATE(hidden.rank() == 2 && hidden.extent(1) == width, ShapeError, "loss: hidden must be [T, ",
                     width, "], got ", hidden.shape().str());
  DELTAPORT_VALIDATE(labels.shape() == (Shape{hidden.extent(0)}), ShapeError, "loss: labels must be [",
                     hidden.extent(0), "], got ", labels.shape().str());
  DELTAPORT_VALIDATE(loss_sum.size() == 1, ShapeError, "loss: loss_sum must be [1], got ",
                     loss_sum.shape().str());
}

template <class T>
void LinearCrossEntropy<T>::forward_backward(Context& context, const Tensor<T>& hidden,
                                             const Tensor<std::int32_t>& labels,
                                             const Tensor<double>& gradient_scale,
                                             const Tensor<double>& loss_sum, Tensor<T>& d_hidden) const {
  WorkScope scope(context.runtime, Work::loss, "deltaport: loss");
  validate(hidden, labels, loss_sum);
  DELTAPORT_VALIDATE(gradient_scale.size() == 1, ShapeError, "loss: gradient_scale must be [1], got ",
                     gradient_scale.shape().str());
  if (!d_hidden) d_hidden = context.runtime.template allocate<T>("loss d_hidden", hidden.shape());
  DELTAPORT_VALIDATE(d_hidden.shape() == hidden.shape(), ShapeError, "loss: d_hidden is ",
                     d_hidden.shape().str(), " but hidden is ", hidden.shape().str());
  run(context.runtime, hidden, labels, gradient_scale, loss_sum, d_hidden);
}

template <class T>
void LinearCrossEntropy<T>::evaluate(Context& context, const Tensor<T>& hidden,
                                     const Tensor<std::int32_t>& labels,
                                     const Tensor<double>& loss_sum) const {
  WorkScope scope(context.runtime, Work::loss, "deltaport: loss (evaluation)");
  validate(hidden, labels, loss_sum);
  run(context.runtime, hidden, labels, {}, loss_sum, {});
}

template <class T>
void LinearCrossEntropy<T>::run(Runtime& runtime, const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
                                const Tensor<double>& scale, const Tensor<double>& loss_sum,
                                const Tensor<T>& d_hidden) const {
  using A = Accumulate<T>;
  const std::int64_t tokens = hidden.extent(0), width = hidden.extent(1);
  const Tensor<T> weight = weight_.value();
  const std::int64_t vocab = weight.extent(0);
  const std::int64_t chunk = std::min(chunk_tokens_, tokens);
  const Want want = d_hidden ? Want::loss_and_gradient : Want::loss;
  const auto buffer = runtime.allocate<A>("loss logits", Shape{chunk, vocab});
  const auto losses = runtime.allocate<double>("loss rows", Shape{tokens});
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, tokens), rows = end - begin;
    const Tensor<A> logits = buffer.rows(0, rows);
    const Tensor<T> h = hidden.rows(begin, end);
    linear_forward<T>(runtime, rows, width, vocab, h.data(), width, weight.data(), logits.data(), vocab);
    enqueue_rows<T>(runtime, logits, labels.rows(begin, end), losses.rows(begin, end), scale, want);
    if (want == Want::loss) continue;
    const T* d_logits = reinterpret_cast<const T*>(logits.data());
    const std::int64_t stride = gradient_strides<T> * vocab;
    linear_backward_input<T>(runtime, rows, width, vocab, d_logits, stride, weight.data(), 0,
                             d_hidden.rows(begin, end).data(), width);
    linear_backward_weight<T>(runtime, rows, width, vocab, d_logits, stride, h.data(), width,
                              weight_.gradient().data());
  }
  for_each_row(runtime.compute(), "deltaport: loss sum", 1,
               AddLosses{tokens, losses.data(), loss_sum.data()});
}

template <class T>
Tensor<Accumulate<T>> LinearCrossEntropy<T>::logits(Runtime& runtime, const Tensor<T>& hidden) const {
  WorkScope scope(runtime, Work::loss, "deltaport: logits");
  const Tensor<T> weight = weight_.value();
  const std::int64_t width = weight.extent(1), vocab = weight.extent(0);
  DELTAPORT_VALIDATE(hidden.rank() == 2 && hidden.extent(1) == width, ShapeError,
                     "logits: hidden must be [rows, ", width, "], got ", hidden.shape().str());
  const auto y = runtime.allocate<Accumulate<T>>("logits", Shape{hidden.extent(0), vocab});
  linear_forward<T>(runtime, hidden.extent(0), width, vocab, hidden.data(), width, weight.data(), y.data(),
                    vocab);
  return y;
}

template class LinearCrossEntropy<bfloat16>;
template class LinearCrossEntropy<float>;
template class LinearCrossEntropy<double>;

}  // namespace deltaport
