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

/// Largest of row[0..n), widened: sixteen running maxima on hosts. NaN is passed over here and found by the sum.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION Accumulate<T> row_max(const TeamMember& team, std::int64_t n, const T* row) {
  using A = Accumulate<T>;
  if constexpr (runs_on_host) {
    (void)team;
    constexpr int lanes = 16;
    A best[lanes];
    for (int lane = 0; lane < lanes; ++lane) best[lane] = widen(row[0]);
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int lane = 0; lane < lanes; ++lane) {
        const A x = widen(row[i + lane]);
        best[lane] = x > best[lane] ? x : best[lane];
      }
    for (; i < n; ++i) best[0] = widen(row[i]) > best[0] ? widen(row[i]) : best[0];
    for (int lane = 1; lane < lanes; ++lane) best[0] = best[lane] > best[0] ? best[lane] : best[0];
    return best[0];
  } else {
    A best = widen(row[0]);
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, n),
        [&](std::int64_t i, A& local) { local = widen(row[i]) > local ? widen(row[i]) : local; },
        Kokkos::Max<A>(best));
    return best;
  }
}

/// Sum of exp(row[i] - shift). Vocabularies reach 250,000 entries: runs of 1024 are summed in Accumulate<T>, the runs in
/// double. Where T can hold them, the exponentials replace the row.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION double exponentials(const TeamMember& team, std::int64_t n, T* row,
                                                Accumulate<T> shift) {
  using A = Accumulate<T>;
  double total = 0.0;
  if constexpr (runs_on_host) {
    constexpr std::int64_t run = 1024;
    A values[run];
    for (std::int64_t begin = 0; begin < n; begin += run) {
      const std::int64_t count = begin + run < n ? run : n - begin;
      T* part = row + begin;
      A* to = values;
      if constexpr (!is_half<T>) to = part;
      row_for(team, count, [=](std::int64_t i) { to[i] = fast_exp(widen(part[i]) - shift); });
      total += static_cast<double>(lane_sum<A>(count, [=](std::int64_t i) { return to[i]; }));
    }
  } else {
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, n),
        [&](std::int64_t i, double& local) {
          const A value = fast_exp(widen(row[i]) - shift);
          if constexpr (!is_half<T>) row[i] = value;
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

/// One row of logits: its loss, and the gradient (softmax - onehot) scale in its place.
template <class T>
struct CrossEntropyRow {
  using A = Accumulate<T>;
  std::int64_t vocab;
  Want want;
  const double* scale_of_gradients;  // null without them
  const std::int32_t* labels;
  T* logits;
  double* loss;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t r = team.league_rank();
    T* row = logits + r * vocab;
    const std::int64_t label = labels[r];
    double* out = loss + r;
    if (label == ignored_label) {
      if (want == Want::loss_and_gradient)
        team_row_for(team, vocab, [=](std::int64_t i) { row[i] = static_cast<T>(A(0)); });
      Kokkos::single(Kokkos::PerTeam(team), [=]() { *out = 0.0; });
      return;
    }
    const bool known = label >= 0 && label < vocab;
    const A top = row_max(team, vocab, row);
    const A target = known ? widen(row[label]) : Kokkos::Experimental::quiet_NaN_v<A>;
    team.team_barrier();
    const double sum = exponentials(team, vocab, row, top);
    Kokkos::single(Kokkos::PerTeam(team), [=]() {
      *out = Kokkos::log(sum) + (static_cast<double>(top) - static_cast<double>(target));
    });
    if (want == Want::loss) return;
    const A scale = static_cast<A>(*scale_of_gradients);
    const A factor = static_cast<A>(static_cast<double>(scale) / sum);
    if constexpr (is_half<T>) {
      const A once = known ? scale : A(0);
      team_row_for(team, vocab, [=](std::int64_t i) {
        row[i] = static_cast<T>(fast_exp(widen(row[i]) - top) * factor - (i == label ? once : A(0)));
      });
    } else {
      team_row_for(team, vocab, [=](std::int64_t i) { row[i] *= factor; });
      team.team_barrier();
      if (known) Kokkos::single(Kokkos::PerTeam(team), [=]() { row[label] -= scale; });
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
void enqueue_rows(Runtime& runtime, const Tensor<T>& logits, const Tensor<std::int32_t>& labels,
                  const Tensor<double>& losses, const Tensor<double>& scale, Want want) {
  const std::int64_t rows = logits.extent(0);
  if (rows == 0) return;
  if (!runs_on_host && logits.extent(1) % PackedCrossEntropy<T>::W == 0) {
    const PackedCrossEntropy<T> packed{logits.extent(1), want == Want::loss ? nullptr : scale.data(),
                                       labels.data(), logits.data(), losses.data()};
    return enqueue_kernel("deltaport: cross-entropy",
                          TeamPolicy(runtime.compute(), static_cast<int>(rows), packed.threads, 1), packed);
  }
  const TeamPolicy policy(runtime.compute(), static_cast<int>(rows), runs_on_host ? 1 : 8,
                          runs_on_host ? 1 : 32);
  enqueue_kernel(
      "deltaport: cross-entropy", policy,
      CrossEntropyRow<T>{logits.extent(1), want, scale.data(), labels.data(), logits.data(), losses.data()});
}

}  // namespace

std::int64_t loss_rows(std::int64_t tokens, std::int64_t chunk_tokens) {
  if (tokens <= chunk_tokens) return tokens;
  constexpr std::int64_t tile = 64;
  const std::int64_t chunks = (tokens + chunk_tokens - 1) / chunk_tokens;
  const std::int64_t rows = (tokens + chunks - 1) / chunks;
  return std::min(chunk_tokens, (rows + tile - 1) / tile * tile);
}

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
  const std::int64_t tokens = hidden.extent(0), width = hidden.extent(1);
  const Tensor<T> weight = weight_.value();
  const std::int64_t vocab = weight.extent(0);
  const std::int64_t chunk = loss_rows(tokens, chunk_tokens_);
  const Want want = d_hidden ? Want::loss_and_gradient : Want::loss;
  const auto buffer = runtime.allocate<T>("loss logits", Shape{chunk, vocab});
  const auto losses = runtime.allocate<double>("loss rows", Shape{tokens});
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, tokens), rows = end - begin;
    const Tensor<T> logits = buffer.rows(0, rows);
    const Tensor<T> h = hidden.rows(begin, end);
    linear_forward<T>(runtime, rows, width, vocab, h.data(), width, weight.data(), logits.data(), vocab);
    enqueue_rows<T>(runtime, logits, labels.rows(begin, end), losses.rows(begin, end), scale, want);
    if (want == Want::loss) continue;
    linear_backward_input<T>(runtime, rows, width, vocab, logits.data(), vocab, weight.data(), 0,
                             d_hidden.rows(begin, end).data(), width);
    linear_backward_weight<T>(runtime, rows, width, vocab, logits.data(), vocab, h.data(), width,
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
