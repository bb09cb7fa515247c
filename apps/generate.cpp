// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/checkpoint/training_state.hpp"
#include "deltaport/comm/session.hpp"
#include "deltaport/config/load.hpp"
#include "deltaport/data/tokenizer.hpp"
#include "deltaport/model/hybrid_lm.hpp"
#include "deltaport/model/sampling.hpp"
#include "deltaport/train/training_run.hpp"

namespace deltaport::app {
namespace {

struct Options {
  std::string path;
  std::vector<std::string> prompts;
  std::string tokenizer;
  bool special_tokens = false;
  std::int64_t tokens = 200;
  std::int64_t prefill_chunk = 2048;
  SamplingOptions sampling{.temperature = 0.8};
};

// A run's folder, its folder of checkpoints, or one checkpoint.
std::filesystem::path checkpoint_of(const std::string& path) {
  const std::filesystem::path inside = std::filesystem::path(path) / "checkpoints";
  return resolve_checkpoint(std::filesystem::is_directory(inside) ? inside : std::filesystem::path(path));
}

// tokenizer.json where import kept it: in the checkpoint, or in the folder that the run began from.
std::string kept_tokenizer(const std::filesystem::path& checkpoint, const std::string& init_from) {
  std::vector<std::filesystem::path> places = {checkpoint / "config", init_from};
  std::error_code ignored;
  if (init_from != "none" && !is_hugging_face_folder(init_from) &&
      std::filesystem::is_directory(init_from, ignored))
    places.push_back(checkpoint_of(init_from) / "config");
  for (const auto& place : places)
    if (std::filesystem::is_regular_file(place / "tokenizer.json", ignored))
      return (place / "tokenizer.json").string();
  return "";
}

std::unique_ptr<Tokenizer> tokenizer_of(const Options& options, const TrainingState& state,
                                        const RunConfig& config, const std::filesystem::path& checkpoint) {
  const auto extra = nlohmann::json::parse(state.extra_json, nullptr, false);
  const std::string name = extra.is_object() ? extra.value("tokenizer", "unknown") : "unknown";
  TokenizerFile file;
  file.path = options.tokenizer.empty() && name == "byte" ? "byte" : options.tokenizer;
  if (file.path.empty()) file.path = kept_tokenizer(checkpoint, config.model.init_from);
  DELTAPORT_VALIDATE(!file.path.empty(), ConfigError, checkpoint.string(),
                     ": its data was prepared with tokenizer '", name, "'; name its file with --tokenizer");
  file.special_tokens = options.special_tokens ? SpecialTokens::recognised : SpecialTokens::as_text;
  return make_tokenizer(file);
}

// One text that grows: its prompt first, then what is drawn.
class Sequence {
 public:
  Sequence(const Tokenizer& tokenizer, const std::string& prompt) : tokenizer_(tokenizer), text_(prompt) {
    // Models of bytes learnt where documents begin; others are given their prompt as it is.
    if (tokenizer.name() == "byte" || prompt.empty()) ids_.push_back(tokenizer.end_of_document());
    tokenizer.encode(prompt, ids_);
  }
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::string& text() const { return text_; }
  bool ended() const { return ended_; }
  // What was drawn, an end of the document included.
  std::int64_t drawn() const { return drawn_; }

  // Draws the next token; returns its bytes.
  std::string draw(std::vector<double> logits, const Options& options, std::uint64_t number) {
    logits.resize(static_cast<std::size_t>(tokenizer_.vocab_size()));
    const std::int32_t token =
        sample_token(logits, options.sampling, number, static_cast<std::uint64_t>(drawn_++));
    std::string bytes;
    if (token != tokenizer_.end_of_document()) {
      tokenizer_.append_bytes(token, bytes);
      ids_.push_back(token);
    }
    ended_ = token == tokenizer_.end_of_document() || drawn_ == options.tokens;
    text_ += bytes;
    return bytes;
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;
  std::int64_t drawn_ = 0;
  std::string text_;
  bool ended_ = false;
};

void show(const std::string& bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

// How long one part of the work took, and for how many tokens.
class Stopwatch {
 public:
  std::string rate(std::int64_t tokens) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    begin_ = now;
    char text[96];
    std::snprintf(text, sizeof text, "%lld token%s in %.3f s, %.1f tokens/s", static_cast<long long>(tokens),
                  tokens == 1 ? "" : "s", seconds, static_cast<double>(tokens) / std::max(seconds, 1e-9));
    return text;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// All prompts at once, then one token of each text at a time, each at its own position: what one of them
// draws does not depend on the others. A single one is shown as it grows, several when all have ended.
template <class T>
void write_texts(const Options& options, const RunConfig& config, const std::filesystem::path& checkpoint,
                 const Tokenizer& tokenizer) {
  Runtime runtime;
  HybridLm<T> model(config.model, lm_options(config));
  model.parameters().allocate(runtime, Purpose::inference);
  load_weights(runtime, checkpoint, Verify::sizes, model.parameters());

  std::vector<Sequence> texts;
  std::vector<std::vector<std::int32_t>> prompts;
  std::int64_t longest = 0, prompt_tokens = 0;
  for (const std::string& prompt : options.prompts) {
    prompts.push_back(texts.emplace_back(tokenizer, prompt).ids());
    const auto length = static_cast<std::int64_t>(prompts.back().size());
    longest = std::max(longest, length);
    prompt_tokens += length;
  }
  const auto count = static_cast<std::int64_t>(texts.size());
  auto state = model.make_decode_state(runtime, count, longest + options.tokens);
  const bool single = texts.size() == 1;
  if (single) show(texts[0].text());
  const auto draw = [&](const Tensor<Accumulate<T>>& logits) {
    for (std::int64_t i = 0; i < count; ++i) {
      Sequence& text = texts[static_cast<std::size_t>(i)];
      if (text.ended()) continue;
      const auto row = to_vector(runtime.compute(), logits.rows(i, i + 1));
      const std::string bytes = text.draw({row.begin(), row.end()}, options, static_cast<std::uint64_t>(i));
      if (single) show(bytes);
    }
  };
  Stopwatch watch;
  draw(model.prefill(runtime, prompts, std::min(options.prefill_chunk, prompt_tokens), state));
  const std::string prefill = watch.rate(prompt_tokens);
  while (!std::all_of(texts.begin(), texts.end(), [](const Sequence& t) { return t.ended(); })) {
    std::vector<std::int32_t> tokens;  // a text that has ended repeats its last
    for (const Sequence& text : texts) tokens.push_back(text.ids().back());
    const auto input =
        from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "tokens", Shape{count}, tokens);
    draw(model.step(runtime, input, state));
  }
  std::int64_t stepped = -count;  // the first token of each came with its prompt
  for (const Sequence& text : texts) stepped += text.drawn();
  const std::string decode = watch.rate(stepped);
  if (!single)
    for (const Sequence& text : texts) show(text.text() + "\n" + (&text == &texts.back() ? "" : "----\n"));
  else
    show("\n");
  std::fprintf(stderr, "prefill: %s\n", prefill.c_str());
  if (stepped > 0) std::fprintf(stderr, "decode: %s\n", decode.c_str());
}

int generate(const Options& options) {
  const auto checkpoint = checkpoint_of(options.path);
  const TrainingState state = read_training_state(checkpoint);
  const RunConfig config = parse_canonical(state.config_yaml, checkpoint.string());
  const auto tokenizer_owner = tokenizer_of(options, state, config, checkpoint);
  const Tokenizer& tokenizer = *tokenizer_owner;

  DELTAPORT_VALIDATE(config.model.vocab_size >= tokenizer.vocab_size(), ConfigError, checkpoint.string(),
                     ": the model's vocabulary of ", config.model.vocab_size,
                     " is smaller than the tokenizer's ", tokenizer.vocab_size(),
                     ": its text cannot be read back");
  if (model_dtype(config) == Dtype::bf16)
    write_texts<bfloat16>(options, config, checkpoint, tokenizer);
  else
    write_texts<float>(options, config, checkpoint, tokenizer);
  return 0;
}

}  // namespace

void add_generate(CLI::App& parent, const Invocation& invocation, Action& action) {
  auto* command = parent.add_subcommand("generate", "sample text from a checkpoint");
  auto options = std::make_shared<Options>();
  command->add_option("path", options->path, "Run folder, folder of checkpoints, or one checkpoint")
      ->required();
  command
      ->add_option("--prompt", options->prompts,
                   "Text to go on from (empty: a new document); may be given several times, for a batch")
      ->allow_extra_args(false);
  command->add_option("--tokenizer", options->tokenizer,
                      "tokenizer.json or its folder (default: byte, or the file that import kept)");
  command->add_flag("--special-tokens", options->special_tokens,
                    "Take text like <|im_start|> in prompts for the special token of that name");
  command->add_option("--tokens", options->tokens, "Most tokens to add; ends earlier with the document")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command
      ->add_option(
          "--prefill-chunk", options->prefill_chunk,
          "Tokens of the prompts that go through the model at once: more are faster and take more memory")
      ->capture_default_str()
      ->check(at_least(std::int64_t{1}));
  command->add_option("--temperature", options->sampling.temperature, "0 takes the most likely token")
      ->capture_default_str()
      ->check(number_in("a number >= 0", [](double x) { return x >= 0.0; }));
  command->add_option("--top-k", options->sampling.top_k, "Keep the k most likely tokens (0: all)")
      ->capture_default_str()
      ->check(at_least(0));
  command
      ->add_option("--top-p", options->sampling.top_p,
                   "Keep the most likely tokens that reach this probability")
      ->capture_default_str()
      ->check(number_in("a number above 0 and at most 1", [](double x) { return x > 0.0 && x <= 1.0; }));
  command->add_option("--seed", options->sampling.seed, "Seed of the draws")
      ->capture_default_str()
      ->check(at_least(std::uint64_t{0}));
  command->callback([=, &action] {
    action = [=]() -> int {
      if (options->prompts.empty()) options->prompts.emplace_back();
      return run_session(*invocation.argc, *invocation.argv, {},
                         [&](Session&) { return generate(*options); });
    };
  });
}

}  // namespace deltaport::app
