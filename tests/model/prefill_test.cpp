// SPDX-License-Identifier: Apache-2.0
// Prompts in chunks against the whole sequence and against single steps.
#include "model/prefill_chunks.hpp"

#include "model/small_lm.hpp"

namespace deltaport {
namespace {

using testing::DeviceDocuments;
using testing::Documents;
using testing::Head;
using testing::host;
using testing::relative_error;
using testing::small_lm_config;
using testing::SmallLm;
using Texts = std::vector<std::vector<std::int32_t>>;

TEST(PrefillChunks, CutAllTokensEndToEnd) {
  const Texts texts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}, {10}};
  const auto chunks = prefill_chunks(texts, 4);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0].first, 0);
  EXPECT_EQ(chunks[0].cu_seqlens, (std::vector<std::int32_t>{0, 3, 4}));
  EXPECT_EQ(chunks[0].tokens, (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(chunks[1].first, 2);
  EXPECT_EQ(chunks[1].cu_seqlens, (std::vector<std::int32_t>{0, 4}));
  EXPECT_EQ(chunks[1].tokens, (std::vector<std::int32_t>{5, 6, 7, 8}));
  EXPECT_EQ(chunks[2].first, 2);
  EXPECT_EQ(chunks[2].cu_seqlens, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(chunks[2].tokens, (std::vector<std::int32_t>{9, 10}));
  EXPECT_EQ(prefill_chunks(texts, 100).size(), 1u);
  EXPECT_EQ(prefill_chunks(texts, 1).size(), 10u);
  EXPECT_THROW(prefill_chunks(texts, 0), ShapeError);
  EXPECT_THROW(prefill_chunks(texts, std::int64_t{1} << 31), ShapeError);
  EXPECT_THROW(prefill_chunks({{1}, {}}, 4), ShapeError);
}

// Texts of different lengths; `extra` tokens of each follow one by one.
struct Ragged {
  static constexpr std::int64_t extra = 5;
  std::vector<std::int64_t> prompts;
  Texts texts;
  Ragged(std::vector<std::int64_t> lengths, std::int64_t vocab) : prompts(std::move(lengths)) {
    for (const std::int64_t length : prompts)
      texts.push_back(Documents({0, static_cast<std::int32_t>(length + extra)}, vocab,
                                static_cast<std::uint64_t>(20 + texts.size()))
                          .tokens);
  }
  // Tokens [begin, end) of each text's prompt, as far as there are any.
  Texts part(std::int64_t begin, std::int64_t end) const {
    Texts parts;
    for (std::size_t n = 0; n < texts.size(); ++n)
      parts.emplace_back(texts[n].begin() + std::min(begin, prompts[n]),
                         texts[n].begin() + std::min(end, prompts[n]));
    return parts;
  }
  Texts all_prompts() const { return part(0, *std::max_element(prompts.begin(), prompts.end())); }
  std::int64_t capacity() const { return *std::max_element(prompts.begin(), prompts.end()) + extra; }
  std::int64_t count() const { return static_cast<std::int64_t>(texts.size()); }
};

// The model's forward over whole texts: logits of text n's token t.
template <class T>
class Whole {
 public:
  Whole(Runtime& runtime, SmallLm<T>& lm, const Ragged& ragged) : vocab_(lm.model.config().vocab_size) {
    SavedTensors saved;
    Context context{runtime, saved, Mode::evaluate};
    for (const auto& text : ragged.texts) {
      Documents alone({0, static_cast<std::int32_t>(text.size())}, vocab_, 1);
      alone.tokens = text;
      const DeviceDocuments d(runtime, alone);
      logits_.push_back(host(runtime, lm.model.logits(context, d.tokens, d.sequences)));
    }
  }
  std::vector<double> at(std::size_t n, std::int64_t t) const {
    return {logits_[n].begin() + t * vocab_, logits_[n].begin() + (t + 1) * vocab_};
  }

 private:
  std::int64_t vocab_;
  std::vector<std::vector<Accumulate<T>>> logits_;
};

template <class T>
std::vector<double> row(const std::vector<T>& logits, std::size_t n, std::int64_t vocab) {
  const auto begin = logits.begin() + static_cast<std::int64_t>(n) * vocab;
  return {begin, begin + vocab};
}

template <class T>
class Prefill : public ::testing::Test {
 protected:
  static constexpr double tolerance = sizeof(T) == 4 ? 2e-4 : 1e-10;
  // Logits of the last prompt tokens, then those of `extra` single steps after them.
  void expect_whole(const ModelConfig& config, const Ragged& ragged, std::int64_t chunk,
                    const LmOptions& options = {.loss_chunk_tokens = 7}) {
    SmallLm<T> lm(runtime_, config, options);
    const Whole<T> whole(runtime_, lm, ragged);
    auto state = lm.model.make_decode_state(runtime_, ragged.count(), ragged.capacity());
    auto logits = host(runtime_, lm.model.prefill(runtime_, ragged.all_prompts(), chunk, state));
    ASSERT_EQ(logits.size(), ragged.texts.size() * static_cast<std::size_t>(config.vocab_size));
    for (std::int64_t more = 0;; ++more) {
      std::vector<std::int32_t> next;
      for (std::size_t n = 0; n < ragged.texts.size(); ++n) {
        const std::int64_t last = ragged.prompts[n] + more - 1;
        EXPECT_LE(relative_error(row(logits, n, config.vocab_size), whole.at(n, last)), tolerance)
            << "chunks of " << chunk << ", text " << n << ", " << more << " steps after its prompt";
        next.push_back(ragged.texts[n][static_cast<std::size_t>(last) + 1 < ragged.texts[n].size()
                                           ? static_cast<std::size_t>(last) + 1
                                           : 0]);
      }
      if (more == Ragged::extra) return;
      const auto input =
          from_vector(runtime_.compute(), runtime_.arena(), "tokens", Shape{ragged.count()}, next);
      logits = host(runtime_, lm.model.step(runtime_, input, state));
    }
  }
  Runtime runtime_;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Prefill, Types);

TYPED_TEST(Prefill, EqualsTheWholeSequenceInAnyChunks) {
  const ModelConfig config = small_lm_config(Head::untied);
  const Ragged ragged({70, 1, 5, 2, 33, 1}, config.vocab_size);
  for (const std::int64_t chunk : {1, 2, 3, 7, 16, 64, 70, 71, 112, 2048})
    this->expect_whole(config, ragged, chunk);
}

// Chunks that begin inside of a tile of keys and span several. What attention gives all tokens goes on into
// the layers behind it.
TYPED_TEST(Prefill, EqualsTheWholeSequenceAcrossTiles) {
  ModelConfig config = small_lm_config(Head::tied);
  config.layer_pattern = {LayerType::attention, LayerType::gdn, LayerType::gdn2};
  const Ragged ragged({230, 64, 129}, config.vocab_size);
  for (const std::int64_t chunk : {50, 64, 90, 128, 200}) this->expect_whole(config, ragged, chunk);
}

TYPED_TEST(Prefill, EqualsTheWholeSequenceForAnyWidthOfTheConvolution) {
  ModelConfig config = small_lm_config(Head::tied, 2);
  const Ragged ragged({9, 1, 2, 3}, config.vocab_size);
  for (const std::int64_t width : {1, 2, 3, 4})
    for (const std::int64_t chunk : {1, 2, 4, 5}) {
      config.linear.conv_kernel = width;
      this->expect_whole(config, ragged, chunk);
    }
}

// Sizes that go by packs of elements, and every implementation of the recurrence.
TYPED_TEST(Prefill, EqualsTheWholeSequenceByEveryImplementation) {
  ModelConfig config = small_lm_config(Head::tied);
  config.hidden_size = 32;
  config.linear = {2, 4, 16, 32, 4, 16};
  const Ragged ragged({40, 1, 17}, config.vocab_size);
  for (const auto implementation :
       {recurrence::Implementation::automatic, recurrence::Implementation::portable,
        recurrence::Implementation::reference})
    for (const std::int64_t chunk : {1, 11, 64})
      this->expect_whole(config, ragged, chunk, {.loss_chunk_tokens = 7, .recurrence = implementation});
}

// A conversation: prompts, steps and prompts again, each kind of sequence with its own length.
TYPED_TEST(Prefill, GoesOnFromAnyState) {
  const ModelConfig config = small_lm_config(Head::untied);
  const Ragged ragged({60, 30, 31}, config.vocab_size);
  Runtime runtime;
  SmallLm<TypeParam> lm(runtime, config);
  const Whole<TypeParam> whole(runtime, lm, ragged);
  auto state = lm.model.make_decode_state(runtime, 3, ragged.capacity());
  lm.model.prefill(runtime,
                   {{ragged.texts[0].begin(), ragged.texts[0].begin() + 20},
                    {ragged.texts[1].begin(), ragged.texts[1].begin() + 1},
                    {ragged.texts[2].begin(), ragged.texts[2].begin() + 29}},
                   8, state);
  const std::vector<std::int32_t> next = {ragged.texts[0][20], ragged.texts[1][1], ragged.texts[2][29]};
  lm.model.step(runtime, from_vector(runtime.compute(), runtime.arena(), "tokens", Shape{3}, next), state);
  const auto logits = host(runtime, lm.model.prefill(runtime,
                                                     {{ragged.texts[0].begin() + 21, ragged.texts[0].end()},
                                                      {ragged.texts[1].begin() + 2, ragged.texts[1].end()},
                                                      {ragged.texts[2].begin() + 30, ragged.texts[2].end()}},
                                                     25, state));
  for (std::size_t n = 0; n < 3; ++n)
    EXPECT_LE(relative_error(row(logits, n, config.vocab_size),
                             whole.at(n, static_cast<std::int64_t>(ragged.texts[n].size()) - 1)),
              this->tolerance)
        << n;
}

// The same states as by single steps, not only the same logits.
TYPED_TEST(Prefill, LeavesTheStatesOfSingleSteps) {
  const ModelConfig config = small_lm_config(Head::tied);
  const std::int64_t length = 37;
  const auto text = Documents({0, 37}, config.vocab_size, 30).tokens;
  Runtime runtime;
  SmallLm<TypeParam> lm(runtime, config);
  auto stepped = lm.model.make_decode_state(runtime, 1, length);
  for (const std::int32_t token : text)
    lm.model.step(
        runtime,
        from_vector(runtime.compute(), runtime.arena(), "token", Shape{1}, std::vector<std::int32_t>{token}),
        stepped);
  for (const std::int64_t chunk : {1, 2, 10, 100}) {
    auto state = lm.model.make_decode_state(runtime, 1, length);
    lm.model.prefill(runtime, {text}, chunk, state);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto& got = std::get<LinearDecodeState<TypeParam>>(state.layers[i]);
      const auto& want = std::get<LinearDecodeState<TypeParam>>(stepped.layers[i]);
      EXPECT_LE(relative_error(host(runtime, got.conv), host(runtime, want.conv)), this->tolerance);
      EXPECT_LE(relative_error(host(runtime, got.recurrent), host(runtime, want.recurrent)), this->tolerance);
    }
    const auto& got = std::get<AttentionState<TypeParam>>(state.layers[2]);
    const auto& want = std::get<AttentionState<TypeParam>>(stepped.layers[2]);
    EXPECT_LE(relative_error(host(runtime, got.keys), host(runtime, want.keys)), this->tolerance);
    EXPECT_LE(relative_error(host(runtime, got.values), host(runtime, want.values)), this->tolerance);
    EXPECT_EQ(host(runtime, got.lengths), (std::vector<std::int32_t>{37}));
    EXPECT_EQ(got.seen, (std::vector<std::int64_t>{37}));
  }
}

TEST(PrefillMemory, IsThatOfOneChunk) {
  ModelConfig config = small_lm_config(Head::tied);
  config.vocab_size = 4096;
  const std::int64_t chunk = 32;
  std::vector<std::size_t> grown;
  for (const std::int64_t length : {64, 4096}) {
    Runtime runtime;
    SmallLm<float> lm(runtime, config);
    auto state = lm.model.make_decode_state(runtime, 1, length);
    const std::size_t before = runtime.arena().stats().allocated;
    runtime.arena().reset_peak();
    lm.model.prefill(runtime, {std::vector<std::int32_t>(static_cast<std::size_t>(length), 7)}, chunk, state);
    grown.push_back(runtime.arena().stats().allocated_peak - before);
    EXPECT_LT(grown.back(), static_cast<std::size_t>(chunk * config.vocab_size) * sizeof(float));
  }
  EXPECT_EQ(grown[0], grown[1]);
}

TEST(PrefillErrors, SayWhatDoesNotFit) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::tied);
  SmallLm<float> lm(runtime, config);
  auto state = lm.model.make_decode_state(runtime, 2, 4);
  EXPECT_THROW(lm.model.prefill(runtime, {{1}}, 8, state), ShapeError);
  EXPECT_THROW(lm.model.prefill(runtime, {{1}, {}}, 8, state), ShapeError);
  EXPECT_THROW(lm.model.prefill(runtime, {{1}, {2}}, 0, state), ShapeError);
  EXPECT_THROW(lm.model.prefill(runtime, {{1}, {2, 3, 4, 5, 6}}, 8, state), ShapeError);
  auto fresh = lm.model.make_decode_state(runtime, 2, 4);
  lm.model.prefill(runtime, {{1}, {2, 3, 4, 5}}, 8, fresh);
  const auto pair =
      from_vector(runtime.compute(), runtime.arena(), "tokens", Shape{2}, std::vector<std::int32_t>{1, 1});
  // The second is full, the first is not. What was refused has changed nothing.
  const auto& first = std::get<LinearDecodeState<float>>(fresh.layers[0]);
  const auto before = host(runtime, first.recurrent);
  EXPECT_THROW(lm.model.step(runtime, pair, fresh), ShapeError);
  EXPECT_THROW(lm.model.prefill(runtime, {{1, 2}, {3}}, 1, fresh), ShapeError);
  EXPECT_TRUE(testing::same_bits(host(runtime, first.recurrent), before));
  DecodeState<float> other;
  other.sequences = 2;
  EXPECT_THROW(lm.model.prefill(runtime, {{1}, {2}}, 8, other), ShapeError);
}

}  // namespace
}  // namespace deltaport
