// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/trainer.hpp"

#include <gtest/gtest.h>

#include "deltaport/data/metadata.hpp"
#include "train/run_files.hpp"
#include "train/small_run.hpp"

namespace deltaport {
namespace {

using testing::Folder;

struct Bits {
  std::vector<float> masters, exp_avg, exp_avg_sq;
  std::vector<std::uint16_t> halves;  // the weights of a run in bfloat16
  std::int64_t updates = 0;
  double validation = 0.0;
  bool operator==(const Bits&) const = default;
};

/// Runs a whole job; returns its exit code and, through `bits`, where it ended.
ExitCode run_job(const LoadedConfig& loaded, Bits* bits = nullptr, const TrainerOptions& options = {}) {
  Runtime runtime;
  Trainer trainer(Communicator::world(), runtime, loaded, options);
  const ExitCode code = trainer.run();
  const auto read = [&](auto& training) {
    bits->masters = to_vector(runtime.compute(), training.optimizer().masters());
    bits->exp_avg = to_vector(runtime.compute(), training.optimizer().exp_avg());
    bits->exp_avg_sq = to_vector(runtime.compute(), training.optimizer().exp_avg_sq());
    bits->updates = training.optimizer().updates(runtime);
    bits->validation = trainer.last_evaluation().loss;
  };
  if (bits != nullptr) {
    if (auto* half = dynamic_cast<TrainingRun<bfloat16>*>(&trainer.training())) {
      read(*half);
      for (const bfloat16 value : to_vector(runtime.compute(), half->model().parameters().flat_values()))
        bits->halves.push_back(value.bits);
    } else {
      read(dynamic_cast<TrainingRun<float>&>(trainer.training()));
    }
  }
  return code;
}

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Communicator world = Communicator::world();
    folder_ = std::make_unique<Folder>(world.broadcast(concat("trainer-", ::getpid())));
    if (world.is_root()) testing::write_small_run(*folder_);
    world.barrier();
  }
  void TearDown() override {
    Communicator::world().barrier();
    if (Communicator::world().is_root()) std::filesystem::remove_all(folder_->str());
    Communicator::world().barrier();
  }
  LoadedConfig config(std::vector<std::string> overrides) const {
    return testing::small_config(*folder_, std::move(overrides));
  }
  std::string run_dir(const std::string& name) const { return "--run.dir=" + *folder_ / name; }
  std::unique_ptr<Folder> folder_;
};

TEST_F(TrainerTest, ResumingAtAnyStepEqualsAStraightRun) {
  const Communicator world = Communicator::world();
  Bits straight;
  const std::vector<std::string> common = {"--train.steps=6", "--checkpoint.every=1",
                                           "--checkpoint.keep_last=10"};
  auto arguments = common;
  arguments.push_back(run_dir("straight"));
  EXPECT_EQ(run_job(config(arguments), &straight), ExitCode::success);
  for (int stop = 1; stop <= 6; ++stop) {
    const std::string name = concat("resumed-", stop);
    const std::string checkpoint = concat("/checkpoints/step-0000000", stop);
    if (world.is_root()) {
      std::filesystem::create_directories(*folder_ / (name + "/checkpoints"));
      std::filesystem::copy(*folder_ / ("straight" + checkpoint), *folder_ / (name + checkpoint),
                            std::filesystem::copy_options::recursive);
      std::filesystem::copy(*folder_ / "straight/metrics.jsonl", *folder_ / (name + "/metrics.jsonl"));
    }
    world.barrier();
    arguments = common;
    arguments.push_back(run_dir(name));
    arguments.push_back("--checkpoint.resume=auto");
    Bits resumed;
    EXPECT_EQ(run_job(config(arguments), &resumed), ExitCode::success);
    EXPECT_EQ(resumed, straight) << "resumed at step " << stop;
    world.barrier();
    const auto straight_metrics = read_metrics(*folder_ / "straight/metrics.jsonl").steps;
    const auto metrics = read_metrics(*folder_ / (name + "/metrics.jsonl")).steps;
    ASSERT_EQ(metrics.size(), 6u);
    for (std::size_t s = 0; s < 6; ++s) {
      EXPECT_EQ(metrics[s].step, static_cast<std::int64_t>(s) + 1);
      EXPECT_EQ(metrics[s].loss, straight_metrics[s].loss);
    }
  }
}

TEST_F(TrainerTest, Bfloat16RunsResumeWithTheSameBits) {
  Bits straight, stopped, resumed;
  const std::vector<std::string> common = {"--train.precision=bfloat16", "--train.steps=5",
                                           "--checkpoint.every=3"};
  auto arguments = common;
  arguments.push_back(run_dir("run"));
  EXPECT_EQ(run_job(config(arguments), &straight), ExitCode::success);
  EXPECT_FALSE(straight.halves.empty());
  Communicator::world().barrier();
  if (Communicator::world().is_root()) {
    std::filesystem::create_directories(*folder_ / "again/checkpoints");
    std::filesystem::copy(*folder_ / "run/checkpoints/step-00000003",
                          *folder_ / "again/checkpoints/step-00000003",
                          std::filesystem::copy_options::recursive);
  }
  Communicator::world().barrier();
  arguments = common;
  arguments.push_back(run_dir("again"));
  arguments.push_back("--checkpoint.resume=auto");
  EXPECT_EQ(run_job(config(arguments), &resumed), ExitCode::success);
  EXPECT_EQ(resumed, straight);
  EXPECT_EQ(read_metrics(*folder_ / "again/metrics.jsonl").run.precision, "bfloat16");
}

TEST_F(TrainerTest, ThePrecisionMayChangeOnlyByName) {
  const std::vector<std::string> common = {run_dir("run"), "--train.steps=3", "--schedule.warmup=1"};
  auto single = common, half = common;
  single.insert(single.end(), {"--checkpoint.every=2"});
  half.insert(half.end(), {"--train.precision=bfloat16", "--checkpoint.resume=auto"});
  Bits before, after;
  EXPECT_EQ(run_job(config(single), &before), ExitCode::success);
  try {
    run_job(config(half));
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
    EXPECT_NE(std::string(e.what()).find("train.precision: \"float32\" in the checkpoint, \"bfloat16\" now"),
              std::string::npos)
        << e.what();
  }
  // The float32 weights become the masters, and back again.
  EXPECT_EQ(run_job(config(half), &after, {{"train.precision"}}), ExitCode::success);
  EXPECT_EQ(after.masters, before.masters);
  EXPECT_EQ(after.exp_avg_sq, before.exp_avg_sq);
  EXPECT_FALSE(after.halves.empty());
}

// Also from a checkpoint of a run without: the bits do not depend on where saved tensors wait.
TEST_F(TrainerTest, OffloadGivesTheSameBitsAndARecordPerStep) {
  const Communicator world = Communicator::world();
  Bits plain, moved, resumed;
  const std::vector<std::string> offload = {"--offload.enabled=true", "--offload.min_tensor_elements=1",
                                            "--offload.slots=1",
                                            "--offload.scopes=[gdn_core_attn, norm_out, mlp]"};
  run_job(config({run_dir("plain"), "--train.steps=4"}), &plain);
  std::vector<std::string> arguments = {run_dir("moved"), "--train.steps=4"};
  arguments.insert(arguments.end(), offload.begin(), offload.end());
  EXPECT_EQ(run_job(config(arguments), &moved), ExitCode::success);
  EXPECT_EQ(moved, plain);
  const MetricsHistory history = read_metrics(*folder_ / "moved/metrics.jsonl");
  ASSERT_EQ(history.offload.size(), 4U);
  for (const OffloadMetrics& m : history.offload) {
    // Of seven groups the last stays; every rank moves its own.
    EXPECT_EQ(m.groups % world.size(), 0);
    EXPECT_GT(m.to_device_bytes, 0);
    EXPECT_EQ(m.useless_bytes, 0);
    EXPECT_GT(m.pinned_bytes, 0);
    EXPECT_EQ(m.peak_allocated_bytes,
              history.steps[static_cast<std::size_t>(m.step - 1)].memory_allocated_bytes);
    EXPECT_FALSE(m.peak_blocks.empty());
  }
  EXPECT_EQ(history.offload[3].groups, 6 * 12);
  world.barrier();
  if (world.is_root()) {
    std::filesystem::create_directories(*folder_ / "stopped");
    std::ofstream(*folder_ / "stopped/STOP");
  }
  world.barrier();
  EXPECT_EQ(run_job(config({run_dir("stopped"), "--train.steps=4"})), ExitCode::requeue);
  arguments[0] = run_dir("stopped");
  arguments.push_back("--checkpoint.resume=auto");
  EXPECT_EQ(run_job(config(arguments), &resumed), ExitCode::success);
  EXPECT_EQ(resumed, plain);
}

TEST_F(TrainerTest, StopFileEndsWithACheckpointAndResumeFinishes) {
  const Communicator world = Communicator::world();
  Bits straight, resumed;
  run_job(config({run_dir("straight"), "--train.steps=4"}), &straight);
  if (world.is_root()) {
    std::filesystem::create_directories(*folder_ / "stopped");
    std::ofstream(*folder_ / "stopped/STOP");
  }
  world.barrier();
  const std::vector<std::string> arguments = {run_dir("stopped"), "--train.steps=4",
                                              "--checkpoint.resume=auto"};
  EXPECT_EQ(run_job(config(arguments)), ExitCode::requeue);
  EXPECT_EQ(run_job(config(arguments), &resumed), ExitCode::success);
  EXPECT_EQ(resumed, straight);
}

TEST_F(TrainerTest, RefusesACheckpointOfAnotherConfiguration) {
  run_job(config({run_dir("run"), "--train.steps=2", "--schedule.warmup=1"}));
  const std::vector<std::string> other = {run_dir("run"), "--train.steps=3", "--schedule.warmup=1",
                                          "--run.seed=9", "--checkpoint.resume=auto"};
  try {
    run_job(config(other));
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
    EXPECT_NE(std::string(e.what()).find("train.steps: 2 in the checkpoint, 3 now"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("run.seed"), std::string::npos) << e.what();
  }
  // A model of other sizes is told by its key, not by all of its tensors.
  try {
    run_job(config({run_dir("run"), "--train.steps=2", "--schedule.warmup=1", "--model.intermediate_size=48",
                    "--checkpoint.resume=auto"}));
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input) << e.what();
    EXPECT_NE(std::string(e.what()).find("model.intermediate_size"), std::string::npos) << e.what();
  }
  // Placement may change, and what is allowed by name may too.
  EXPECT_EQ(run_job(config({run_dir("run"), "--train.steps=3", "--schedule.warmup=1", "--logging.every=5",
                            "--checkpoint.resume=auto"}),
                    nullptr, {{"train.steps"}}),
            ExitCode::success);
}

TEST_F(TrainerTest, RefusesToStartOverAnEarlierRun) {
  const std::vector<std::string> arguments = {run_dir("run"), "--train.steps=2", "--schedule.warmup=1"};
  EXPECT_EQ(run_job(config(arguments)), ExitCode::success);
  try {
    run_job(config(arguments));
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
    EXPECT_NE(std::string(e.what()).find("--resume"), std::string::npos) << e.what();
  }
}

TEST_F(TrainerTest, RefusesChangedData) {
  const Communicator world = Communicator::world();
  run_job(config({run_dir("run"), "--train.steps=2", "--schedule.warmup=1"}));
  world.barrier();
  if (world.is_root()) testing::write_tokens(*folder_ / "train", 301);
  world.barrier();
  EXPECT_THROW(
      run_job(config({run_dir("run"), "--train.steps=2", "--schedule.warmup=1", "--checkpoint.resume=auto"})),
      Error);
}

TEST_F(TrainerTest, StopsOrGoesOnWhenTheLossIsNotFinite) {
  const std::vector<std::string> common = {"--train.steps=4", "--optimizer.lr=1.0e30", "--train.grad_clip=0",
                                           "--schedule.warmup=1", "--eval.at_end=false"};
  auto stop = common, skip = common;
  stop.push_back(run_dir("stop"));
  skip.push_back(run_dir("skip"));
  skip.push_back("--train.on_nonfinite=skip");
  try {
    run_job(config(stop));
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::non_finite);
    EXPECT_NE(std::string(e.what()).find("optimizer.lr"), std::string::npos);
    EXPECT_EQ(std::string(e.what()).find("-nan"), std::string::npos) << e.what();
  }
  // Skipping goes on to the last step, but ruined weights are neither saved nor called a success.
  EXPECT_THROW(run_job(config(skip)), Error);
  Communicator::world().barrier();
  EXPECT_EQ(read_metrics(*folder_ / "skip/metrics.jsonl").steps.size(), 4u);
  EXPECT_FALSE(find_latest(*folder_ / "skip/checkpoints"));
}

TEST_F(TrainerTest, OneRunAtATimeMayUseAFolder) {
  const LoadedConfig loaded = config({run_dir("run"), "--train.steps=1", "--schedule.warmup=0"});
  const Communicator world = Communicator::world();
  {
    std::unique_ptr<train::RunLock> other;
    if (world.is_root()) other = std::make_unique<train::RunLock>(*folder_ / "run");
    world.barrier();
    EXPECT_THROW(run_job(loaded), Error);
    world.barrier();
  }
  world.barrier();
  EXPECT_EQ(run_job(loaded), ExitCode::success);
}

TEST_F(TrainerTest, AVocabularyThatIsTooSmallShowsBeforeTheFirstStep) {
  const Communicator world = Communicator::world();
  TokenFileMetadata metadata;
  metadata.tokenizer = "byte";
  metadata.vocab_size = 257;
  metadata.max_id = 256;
  if (world.is_root()) std::ofstream(*folder_ / "train.meta.json") << to_json(metadata);
  world.barrier();
  try {
    run_job(config({run_dir("run"), "--model.vocab_size=256"}));
    FAIL() << "no exception";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::data);
    EXPECT_NE(std::string(e.what()).find("model.vocab_size 256"), std::string::npos) << e.what();
  }
}

TEST_F(TrainerTest, KeepsConfigurationFilesOfAnyName) {
  const Communicator world = Communicator::world();
  if (world.is_root())
    std::filesystem::copy(*folder_ / "run.yaml", *folder_ /
                                                     "my run\xff"
                                                     ".yaml");
  world.barrier();
  LoadRequest request;
  request.files = {*folder_ /
                   "my run\xff"
                   ".yaml"};
  request.overrides = {run_dir("run"), "--train.steps=1", "--schedule.warmup=0"};
  request.environment = std::map<std::string, std::string>{};
  EXPECT_EQ(run_job(load_config(request)), ExitCode::success);
  EXPECT_TRUE(std::filesystem::exists(*folder_ / "run/config.original/0-my_run_.yaml"));
}

TEST_F(TrainerTest, KeepsTheConfigurationBesideTheRun) {
  run_job(config({run_dir("run"), "--train.steps=1", "--schedule.warmup=0"}));
  Communicator::world().barrier();
  std::ifstream resolved(*folder_ / "run/config.resolved.yaml");
  const std::string text((std::istreambuf_iterator<char>(resolved)), {});
  EXPECT_NE(text.find("# --train.steps"), std::string::npos) << text;
  EXPECT_TRUE(std::filesystem::exists(*folder_ / "run/config.original/0-run.yaml"));
}

TEST_F(TrainerTest, CapturedGraphsAreReportedAndResumeWithTheSameBits) {
  const std::vector<std::string> common = {"--train.steps=6", "--checkpoint.every=3", "--eval.at_end=true"};
  const auto job = [&](const std::string& dir, std::vector<std::string> more) {
    std::vector<std::string> all = common;
    all.push_back(run_dir(dir));
    all.insert(all.end(), more.begin(), more.end());
    Bits bits;
    EXPECT_EQ(run_job(config(all), &bits), ExitCode::success);
    return bits;
  };
  const Bits eager = job("eager", {});
  const Bits graph = job("graph", {"--graph.scope=step"});
  EXPECT_TRUE(eager == graph);
  // graph.scope is no part of what a run is: an eager run goes on captured.
  const std::string half = "--checkpoint.resume=" + *folder_ / "eager" + "/checkpoints/step-00000003";
  EXPECT_TRUE(job("resumed", {"--graph.scope=layer", half}) == eager);
  if (!Communicator::world().is_root()) return;
  const MetricsHistory history = read_metrics(*folder_ / "graph" + "/metrics.jsonl");
  ASSERT_FALSE(history.graphs.empty());
  EXPECT_EQ(history.graphs[0].step, 2);  // after one warm-up step
  EXPECT_GT(history.graphs[0].operations, 100);
  EXPECT_GT(history.graphs[0].bytes, 0);
  EXPECT_GT(history.graphs[0].capture_seconds, 0.0);
  EXPECT_TRUE(read_metrics(*folder_ / "eager" + "/metrics.jsonl").graphs.empty());
}

// Only the last rank goes on eagerly; who reads the console is told all the same.
TEST_F(TrainerTest, WarningsOfEveryRankAreSaidAndKept) {
  const Communicator world = Communicator::world();
  std::vector<std::string> all = {run_dir("run"), "--train.steps=3", "--schedule.warmup=0",
                                  "--graph.scope=step", "--graph.on_failure=eager"};
  if (world.rank() == world.size() - 1) all.push_back("--graph.max_shapes=1");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_job(config(all)), ExitCode::success);
  std::fflush(stdout);
  const std::string console = ::testing::internal::GetCapturedStdout();
  world.barrier();
  if (!world.is_root()) return;
  const std::string start = concat(world.size() > 1 ? concat("rank ", world.size() - 1, ": ") : std::string(),
                                   "graph.max_shapes = 1 is reached");
  const auto warnings = read_metrics(*folder_ / "run/metrics.jsonl").warnings;
  ASSERT_FALSE(warnings.empty());
  for (const WarningMetrics& warning : warnings) EXPECT_EQ(warning.text.find(start), 0U) << warning.text;
  EXPECT_GE(warnings[0].step, 1);
  EXPECT_NE(console.find("warning: " + warnings[0].text), std::string::npos) << console;
}

TEST_F(TrainerTest, SaysThatNothingWasCaptured) {
  const std::vector<std::string> common = {run_dir("run"), "--train.steps=4", "--graph.scope=layer",
                                           "--graph.warmup_steps=3", "--checkpoint.every=2"};
  const auto warnings = [&] {
    Communicator::world().barrier();
    return read_metrics(*folder_ / "run/metrics.jsonl").warnings;
  };
  EXPECT_EQ(run_job(config(common)), ExitCode::success);
  EXPECT_TRUE(warnings().empty());
  Communicator::world().barrier();
  if (Communicator::world().is_root())
    std::filesystem::remove_all(*folder_ / "run/checkpoints/step-00000004");
  Communicator::world().barrier();
  auto resumed = common;
  resumed.push_back("--checkpoint.resume=auto");
  EXPECT_EQ(run_job(config(resumed)), ExitCode::success);
  const auto after = warnings();
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].step, 4);
  EXPECT_EQ(after[0].text.find("graph.scope = layer captured nothing in the 2 steps since the start: "
                               "graph.warmup_steps = 3 of them"),
            0U)
      << after[0].text;
}

}  // namespace
}  // namespace deltaport
