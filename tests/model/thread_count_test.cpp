// SPDX-License-Identifier: Apache-2.0
// Runs itself with one, two and three threads and compares digests of every layer's outputs and gradients.
#include <unistd.h>

#include <cstdio>

#include "deltaport/model/attention_mixer.hpp"
#include "deltaport/model/embedding.hpp"
#include "deltaport/model/linear_cross_entropy.hpp"
#include "deltaport/model/mlp.hpp"
#include "deltaport/model/rms_norm.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

template <class T>
std::uint64_t digest(Runtime& runtime, const Tensor<T>& x) {
  const auto values = host(runtime, x);
  return stream_of({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

/// Digests of loss, hidden states and all gradients of a one-layer model.
template <class T>
std::string model_digest() {
  Runtime runtime;
  ModelConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 100;
  config.vocab_size = 97;
  config.attention = {4, 2, 32, 0.5, 1e4};
  ParameterSet<T> parameters;
  const Embedding<T> embedding(parameters, "embed", config);
  const RmsNorm<T> norm1(parameters, "norm1", 48, 1e-6), norm2(parameters, "norm2", 48, 1e-6);
  const AttentionMixer<T> mixer(parameters, "attn", config);
  const Mlp<T> mlp(parameters, "mlp", config);
  const LinearCrossEntropy<T> loss(embedding.weight(), 50);
  parameters.allocate(runtime);
  randomise(runtime, parameters, 1, 0.2);
  const std::int32_t tokens = 333;
  std::vector<std::int32_t> ids(tokens);
  for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t * t % 97);
  const auto tokens_device = from_vector(runtime.compute(), runtime.arena(), "ids", Shape{tokens}, ids);
  const Sequences sequences = make_sequences(runtime, {0, 5, 200, tokens}, tokens);
  SavedTensors saved;
  Context context{runtime, saved, Mode::train};
  const auto x = embedding.forward(context, tokens_device);
  const auto y = mixer.forward(context, norm1.forward(context, x), sequences);
  const auto h = norm2.forward_residual(context, x, y);
  const auto z = mlp.forward(context, h.normalised);
  const auto sum = runtime.allocate_zero<double>("loss", Shape{1});
  Tensor<T> d;
  loss.forward_backward(context, z, tokens_device, 0.01, sum, d);
  const auto dh = norm2.backward(context, mlp.backward(context, d));
  const auto dx = norm1.backward(context, mixer.backward(context, dh, sequences), dh);
  embedding.backward(context, dx);
  return concat(std::hex, digest(runtime, sum), " ", digest(runtime, z), " ", digest(runtime, dx), " ",
                digest(runtime, parameters.flat_gradients()));
}

// Also run by the test below, in processes with other numbers of threads.
TEST(ThreadCount, child) {
  const std::string single = model_digest<float>(), half = model_digest<bfloat16>();
  EXPECT_NE(single, half);
  std::printf("digest %s %s\n", single.c_str(), half.c_str());
}

std::string run_child(int threads) {
  char path[4096] = {};
  if (::readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0) return "no path";
  const std::string command =
      concat("OMP_NUM_THREADS=", threads, " '", path, "' --gtest_filter=ThreadCount.child 2>/dev/null");
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "no pipe";
  std::string found;
  char buffer[512];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr)
    if (std::string(buffer).rfind("digest ", 0) == 0) found = buffer;
  return ::pclose(pipe) == 0 ? found : "child failed";
}

TEST(ThreadCount, one_two_and_three_threads_give_the_same_bits) {
  const std::string one = run_child(1);
  ASSERT_EQ(one.rfind("digest ", 0), 0u) << one;
  EXPECT_EQ(run_child(2), one);
  EXPECT_EQ(run_child(3), one);
  EXPECT_EQ(run_child(2), one);  // and from run to run
}

}  // namespace
}  // namespace deltaport
