// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
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
  std::string prompt;
  std::int64_t tokens = 200;
  SamplingOptions sampling{.temperature = 0.8};
};

// A run's folder, its folder of checkpoints, or one checkpoint.
std::filesystem::path checkpoint_of(const std::string& path) {
  const std::filesystem::path inside = std::filesystem::path(path) / "checkpoints";
  return resolve_checkpoint(std::filesystem::is_directory(inside) ? inside : std::filesystem::path(path));
}

template <class T>
class Writer {
 public:
  explicit Writer(const HybridLm<T>& model, Runtime& runtime, std::int64_t capacity)
      : runtime_(runtime), state_(model.make_decode_state(runtime, 1, capacity)) {}

  // Feeds one token and returns the logits of its successor.
  std::vector<double> feed(HybridLm<T>& model, std::int32_t token) {
    const auto input =
        from_vector<std::int32_t>(runtime_.compute(), runtime_.arena(), "token", Shape{1}, {token});
    const auto logits = to_vector(runtime_.compute(), model.step(runtime_, input, state_));
    return {logits.begin(), logits.end()};
  }

 private:
  Runtime& runtime_;
  DecodeState<T> state_;
};

std::unique_ptr<Tokenizer> tokenizer_of(const TrainingState& state, const std::filesystem::path& checkpoint) {
  const auto extra = nlohmann::json::parse(state.extra_json, nullptr, false);
  const std::string name = extra.is_object() ? extra.value("tokenizer", "unknown") : "unknown";
  DELTAPORT_VALIDATE(name == "byte", ConfigError, checkpoint.string(),
                     ": its data was prepared with tokenizer '", name, "'; generate knows 'byte'");
  return make_tokenizer(name);
}

template <class T>
void write_text(const Options& options, const RunConfig& config, const std::filesystem::path& checkpoint,
                const Tokenizer& tokenizer) {
  Runtime runtime;
  HybridLm<T> model(config.model, lm_options(config));
  model.parameters().allocate(runtime, Purpose::inference);
  load_weights(runtime, checkpoint, Verify::sizes, model.parameters());

  std::vector<std::int32_t> prompt = {tokenizer.end_of_document()};
  tokenizer.encode(options.prompt, prompt);
  Writer<T> writer(model, runtime, static_cast<std::int64_t>(prompt.size()) + options.tokens);
  std::vector<double> logits;
  for (const std::int32_t token : prompt) logits = writer.feed(model, token);
  std::fputs(options.prompt.c_str(), stdout);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    logits.resize(static_cast<std::size_t>(tokenizer.vocab_size()));
    const std::int32_t token = sample_token(logits, options.sampling, 0, static_cast<std::uint64_t>(i));
    if (token == tokenizer.end_of_document()) break;
    std::string bytes;
    tokenizer.append_bytes(token, bytes);
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
    if (i + 1 < options.tokens) logits = writer.feed(model, token);
  }
  std::fputc('\n', stdout);
}

int generate(const Options& options) {
  const auto checkpoint = checkpoint_of(options.path);
  const TrainingState state = read_training_state(checkpoint);
  const RunConfig config = parse_canonical(state.config_yaml, checkpoint.string());
  const auto tokenizer_owner = tokenizer_of(state, checkpoint);
  const Tokenizer& tokenizer = *tokenizer_owner;

  DELTAPORT_VALIDATE(config.model.vocab_size >= tokenizer.vocab_size(), ConfigError, checkpoint.string(),
                     ": the model's vocabulary of ", config.model.vocab_size,
                     " is smaller than the tokenizer's ", tokenizer.vocab_size(),
                     ": its text cannot be read back");
  if (model_dtype(config) == Dtype::bf16)
    write_text<bfloat16>(options, config, checkpoint, tokenizer);
  else
    write_text<float>(options, config, checkpoint, tokenizer);
  return 0;
}

}  // namespace

void add_generate(CLI::App& parent, const Invocation& invocation, Action& action) {
  auto* command = parent.add_subcommand("generate", "sample text from a checkpoint, token by token");
  auto options = std::make_shared<Options>();
  command->add_option("path", options->path, "Run folder, folder of checkpoints, or one checkpoint")
      ->required();
  command->add_option("--prompt", options->prompt, "Text to go on from (empty: a new document)");
  command->add_option("--tokens", options->tokens, "Most tokens to add; ends earlier with the document")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command->add_option("--temperature", options->sampling.temperature, "0 takes the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Keep the k most likely tokens (0: all)")
      ->capture_default_str();
  command
      ->add_option("--top-p", options->sampling.top_p,
                   "Keep the most likely tokens that reach this probability")
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "Seed of the draws")
      ->capture_default_str()
      ->check(at_least(std::uint64_t{0}));
  command->callback([=, &action] {
    action = [=]() -> int {
      return run_session(*invocation.argc, *invocation.argv, {},
                         [&](Session&) { return generate(*options); });
    };
  });
}

}  // namespace deltaport::app
