// SPDX-License-Identifier: Apache-2.0
// Training as transformers and PyTorch's AdamW do it from the same weights, on the same tokens: qwen3_5.py says how.
#include <gtest/gtest.h>

#include <cstdio>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/data/token_writer.hpp"
#include "deltaport/train/training_run.hpp"
#include "golden/qwen3_5_folder.hpp"

namespace deltaport::test {
namespace {

/// Root mean square of the differences of two loss curves, in nats.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class Qwen35Curve : public ::testing::Test {
 protected:
  SafetensorsReader golden{golden_folder() / "curve.safetensors"};
  std::vector<double> float32 = golden.read<double>("float32");
  std::vector<double> autocast = golden.read<double>("autocast");
  std::vector<double> bfloat16_weights = golden.read<double>("bfloat16");
  TempFolder folder;

  double setting(const char* name) { return std::stod(golden.metadata().at(name)); }
  RunConfig config() {
    RunConfig c;
    c.model = read_hugging_face_model(golden_folder());
    c.model.init_from = golden_folder().string();
    c.data.train = {{(folder / "tokens").string()}};
    c.data.seq_len = static_cast<std::int64_t>(setting("length"));
    c.data.shuffle = false;
    c.train.steps = static_cast<std::int64_t>(float32.size());
    c.train.global_batch_tokens = c.data.seq_len * static_cast<std::int64_t>(setting("samples"));
    c.train.grad_clip = setting("clip");
    c.optimizer = {setting("rate"), setting("beta1"), setting("beta2"), setting("eps"), setting("decay")};
    c.schedule.name = ScheduleName::constant;
    c.schedule.warmup = static_cast<std::int64_t>(setting("warmup"));
    return c;
  }
  /// Losses of all steps.
  template <class T>
  std::vector<double> train() {
    TokenWriter writer((folder / "tokens").string(), TokenDtype::i32, Existing::replace);
    writer.append(golden.read<std::int32_t>("tokens"));
    writer.end_document();
    writer.publish(nullptr);
    Runtime runtime;
    TrainingRun<T> run(Communicator(), runtime, config());
    std::vector<double> losses;
    for (std::int64_t step = 0; step < static_cast<std::int64_t>(float32.size()); ++step)
      losses.push_back(run.step(step).loss);
    return losses;
  }
  /// What roundings to bfloat16 do to their own curve: the farther of their two ways from their float32 run.
  double noise() { return std::max(distance(autocast, float32), distance(bfloat16_weights, float32)); }
};

TEST_F(Qwen35Curve, Float32IsFarCloserThanTheirRoundings) {
  const std::vector<double> losses = train<float>();
  const double found = distance(losses, float32);
  std::printf("loss from %.4f to %.4f; from their float32 run %.1e, their noise %.1e\n", losses.front(),
              losses.back(), found, noise());
  EXPECT_LT(losses.back(), losses.front() - 1.0);
  EXPECT_LT(found, 0.02 * noise());
}

TEST_F(Qwen35Curve, BFloat16IsWithinTheirNoise) {
  const std::vector<double> losses = train<bfloat16>();
  const double found = distance(losses, float32);
  std::printf("loss from %.4f to %.4f; from their float32 run %.1e, autocast %.1e, bfloat16 weights %.1e\n",
              losses.front(), losses.back(), found, distance(losses, autocast),
              distance(losses, bfloat16_weights));
  std::printf("their float32 run from autocast %.1e, bfloat16 weights %.1e\n", distance(autocast, float32),
              distance(bfloat16_weights, float32));
  EXPECT_LT(losses.back(), losses.front() - 1.0);
  EXPECT_LE(found, noise());
}

}  // namespace
}  // namespace deltaport::test
