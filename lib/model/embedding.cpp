// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/embedding.hpp"

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/embedding_chains.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

template <class T>
struct GatherRow {
  std::int64_t vocab, hidden;
  const std::int32_t* tokens;
  const T* table;
  T* y;
  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t t = team.league_rank();
    const std::int64_t id = tokens[t];
    T* out = y + t * hidden;
    if (id < 0 || id >= vocab) {
      row_for(team, hidden,
              [=](const std::int64_t i) { out[i] = T(Kokkos::Experimental::quiet_NaN_v<Accumulate<T>>); });
      return;
    }
    const T* row = table + id * hidden;
    row_for(team, hidden, [=](const std::int64_t i) { out[i] = row[i]; });
  }
};

/// One team owns a strip of columns of the whole gradient and walks all tokens in order: no two teams write
/// the same element and every sum has one order, with neither atomics nor a sort.
template <class T>
struct ScatterColumns {
  static constexpr int strip = 32;
  std::int64_t tokens_count, vocab, hidden;
  const std::int32_t* tokens;
  const T* dy;
  Accumulate<T>* gradient;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t begin = static_cast<std::int64_t>(team.league_rank()) * strip;
    const std::int64_t width = begin + strip < hidden ? strip : hidden - begin;
    for (std::int64_t t = 0; t < tokens_count; ++t) {
      const std::int64_t id = tokens[t];
      if (id < 0 || id >= vocab) continue;
      const T* from = dy + t * hidden + begin;
      Accumulate<T>* to = gradient + id * hidden + begin;
      row_for(team, width, [=](const std::int64_t i) { to[i] += widen(from[i]); });
    }
  }
};

}  // namespace

template <class T>
Embedding<T>::Embedding(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config)
    : vocab_(config.vocab_size), hidden_(config.hidden_size) {
  DELTAPORT_VALIDATE(vocab_ > 0 && hidden_ > 0, ConfigError, prefix, ": vocab_size = ", vocab_,
                     " and hidden_size = ", hidden_, " must be positive");
  weight_ = {&parameters, parameters.declare(prefix + ".weight", Shape{vocab_, hidden_}, true,
                                             {Initializer::Kind::normal, config.initializer_range, 0.0})};
}

template <class T>
Tensor<T> Embedding<T>::forward(Context& context, const Tensor<std::int32_t>& tokens) const {
  WorkScope scope(context.runtime, Work::elementwise, "deltaport: embedding forward");
  DELTAPORT_VALIDATE(tokens.rank() == 1, ShapeError, "embedding: tokens must be [T], got ",
                     tokens.shape().str());
  const std::int64_t count = tokens.extent(0);
  const auto y = context.runtime.template allocate<T>("embedding", Shape{count, hidden_});
  const T* const table = weight_.value().data();
  if (packable(hidden_, {table, y.data()}))
    for_each_index(context.exec(), "deltaport: embedding forward", y.size() / pack_width,
                   GatherPacks<T>{vocab_, hidden_, tokens.data(), table, y.data()});
  else
    for_each_row(context.exec(), "deltaport: embedding forward", count,
                 GatherRow<T>{vocab_, hidden_, tokens.data(), table, y.data()});
  if (context.training()) context.saved.save(tokens);
  return y;
}

template <class T>
void Embedding<T>::backward(Context& context, const Tensor<T>& dy) const {
  WorkScope scope(context.runtime, Work::elementwise, "deltaport: embedding backward");
  const auto tokens = context.saved.template take<std::int32_t>();
  const std::int64_t count = tokens.extent(0);
  DELTAPORT_VALIDATE(dy.shape() == (Shape{count, hidden_}), ShapeError, "embedding: dy must be [", count,
                     ", ", hidden_, "], got ", dy.shape().str());
  Accumulate<T>* const gradient = weight_.gradient().data();
  if (packable(hidden_, {dy.data(), gradient})) {
    const auto next = context.runtime.template allocate<std::int32_t>("embedding chains", Shape{2, count});
    for_each_group(context.exec(), "deltaport: embedding chains", count, LinkEqualTokens::lanes,
                   LinkEqualTokens{count, vocab_, tokens.data(), next.data()});
    for_each_index(context.exec(), "deltaport: embedding backward", dy.size() / pack_width,
                   AddChains<T>{count, hidden_, tokens.data(), next.data(), dy.data(), gradient});
    return;
  }
  constexpr std::int64_t strip = ScatterColumns<T>::strip;
  for_each_row(context.exec(), "deltaport: embedding backward", (hidden_ + strip - 1) / strip,
               ScatterColumns<T>{count, vocab_, hidden_, tokens.data(), dy.data(), gradient});
}

template class Embedding<bfloat16>;
template class Embedding<float>;
template class Embedding<double>;

}  // namespace deltaport
