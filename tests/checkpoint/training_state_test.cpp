// SPDX-License-Identifier: Apache-2.0
#include "deltaport/checkpoint/training_state.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "checkpoint/file_system.hpp"
#include "checkpoint/model_fixture.hpp"
#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport {
namespace {

using test::message_of;
using test::Model;
using test::SharedFolder;

std::string shard(const char* family, int rank, int ranks) {
  return concat(family, "-0000", rank + 1, "-of-0000", ranks, ".safetensors");
}

TrainingState full_state() {
  TrainingState s;
  s.step = 1000;
  s.consumed_samples = 123456789012345;
  s.tokens = 987654321098765;
  s.seed = std::numeric_limits<std::uint64_t>::max();
  s.fingerprint = "corpus \"a\"\n\xc3\xa9";
  s.loss = 0.1 + 0.2;
  s.loss_ema = std::numeric_limits<double>::quiet_NaN();
  s.lr = 5e-324;
  s.wall_seconds = -std::numeric_limits<double>::infinity();
  s.config_yaml = "version: 1\nrun: {name: x}\n";
  s.config_files = {{"base.yaml", "a: 1\n"}, {"empty.yaml", ""}};
  s.extra_json = R"({"loader":{"epoch":3},"list":[1,2.5,null]})";
  return s;
}

template <class T>
class TrainingStateTest : public ::testing::Test {
 protected:
  Communicator world = Communicator::world();
};
using Types = ::testing::Types<bfloat16, float, double>;
TYPED_TEST_SUITE(TrainingStateTest, Types);

TYPED_TEST(TrainingStateTest, RoundTripKeepsEveryBit) {
  SharedFolder folder(this->world);
  Model<TypeParam> saved, loaded;
  saved.fill_with_random_bits(3);
  saved.optimizer->set_updates(saved.runtime, 998);
  const TrainingState s = full_state();
  const SavedCheckpoint result = save_training_state(this->world, saved.runtime, folder / "c", s,
                                                     saved.parameters, *saved.optimizer, RetentionPolicy{});
  EXPECT_EQ(result.path, folder / "c" / "step-00001000");
  EXPECT_TRUE(result.warnings.empty());
  const LoadedCheckpoint back = loaded.load(this->world, result.path);
  EXPECT_EQ(loaded.bytes(), saved.bytes());
  EXPECT_EQ(back.path, result.path);
  EXPECT_TRUE(back.warnings.empty());
  const TrainingState& t = back.state;
  EXPECT_EQ(t.step, s.step);
  EXPECT_EQ(t.consumed_samples, s.consumed_samples);
  EXPECT_EQ(t.tokens, s.tokens);
  EXPECT_EQ(t.seed, s.seed);
  EXPECT_EQ(t.fingerprint, s.fingerprint);
  EXPECT_EQ(t.loss, s.loss);
  EXPECT_TRUE(std::isnan(t.loss_ema));
  EXPECT_EQ(t.lr, s.lr);
  EXPECT_EQ(t.wall_seconds, s.wall_seconds);
  EXPECT_EQ(t.config_yaml, s.config_yaml);
  EXPECT_EQ(t.config_files, s.config_files);
  EXPECT_NE(t.extra_json.find("\"epoch\":3"), std::string::npos);
  EXPECT_EQ(read_training_state(result.path).config_files, s.config_files);
}

TYPED_TEST(TrainingStateTest, FolderHoldsWhatTheHeaderSays) {
  SharedFolder folder(this->world);
  Model<TypeParam> model;
  const auto path = model.save(this->world, folder.path(), 1).path;
  constexpr bool half = is_half<TypeParam>;
  const int ranks = this->world.size();
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) {
    const SafetensorsReader weights(path / shard("model", rank, ranks));
    const SafetensorsReader moments(path / shard("optim", rank, ranks));
    EXPECT_EQ(weights.metadata().at("format"), "pt");
    for (const TensorEntry& entry : weights.tensors()) {
      names.push_back(entry.name);
      if (half && entry.name != "layer.1.scale")
        EXPECT_EQ(entry.dtype, FileDtype::bf16) << entry.name;
      else
        EXPECT_EQ(entry.dtype, sizeof(TypeParam) == 8 ? FileDtype::f64 : FileDtype::f32) << entry.name;
      EXPECT_EQ(moments.contains("master." + entry.name), half);
      EXPECT_TRUE(moments.contains("exp_avg." + entry.name));
      EXPECT_TRUE(moments.contains("exp_avg_sq." + entry.name));
    }
    EXPECT_EQ(moments.tensors().size(), (half ? 3 : 2) * weights.tensors().size());
    for (const TensorEntry& entry : moments.tensors())
      EXPECT_EQ(entry.dtype, sizeof(TypeParam) == 8 ? FileDtype::f64 : FileDtype::f32) << entry.name;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"embed.weight", "layer.0.norm", "layer.0.w", "layer.1.scale"}));
  EXPECT_EQ(test::read_file(folder / "latest"), "step-00000001\n");
  EXPECT_EQ(std::filesystem::file_size(path / "COMMIT"), 0u);
  EXPECT_EQ(find_latest(folder.path()), path);
}

TYPED_TEST(TrainingStateTest, AnyNumberOfRanksLoadsWhatAnyOtherSaved) {
  SharedFolder folder(this->world);
  Model<TypeParam> saved, loaded;
  saved.fill_with_random_bits(5);
  saved.save(this->world, folder / "many", 1);
  loaded.load(Communicator(), folder / "many");  // each rank alone
  EXPECT_EQ(loaded.bytes(), saved.bytes());
  if (this->world.is_root()) saved.save(Communicator(), folder / "one", 1);
  this->world.barrier();
  Model<TypeParam> again;
  again.load(this->world, folder / "one" / "step-00000001", Verify::sizes);
  EXPECT_EQ(again.bytes(), saved.bytes());
}

TYPED_TEST(TrainingStateTest, ResumedStepsEqualStraightOnes) {
  SharedFolder folder(this->world);
  Model<TypeParam> straight, first, second;
  for (unsigned s = 0; s < 4; ++s) straight.step(s);
  for (unsigned s = 0; s < 2; ++s) first.step(s);
  first.save(this->world, folder.path(), 2);
  second.step(77);  // something else before, which loading must wipe out
  EXPECT_EQ(second.resume(this->world, folder.path())->state.step, 2);
  for (unsigned s = 2; s < 4; ++s) second.step(s);
  EXPECT_EQ(second.bytes(), straight.bytes());
}

/// Masters of each parameter, by name: layouts of other types may put them elsewhere.
template <class T>
std::map<std::string, std::vector<float>> masters(Model<T>& model) {
  std::map<std::string, std::vector<float>> all;
  for (std::size_t i = 0; i < model.parameters.infos().size(); ++i)
    all[model.parameters.infos()[i].name] =
        to_vector(model.runtime.compute(), model.parameters.master(static_cast<int>(i)));
  return all;
}

// The check of the configuration decides whether the precision may change; if it may, nothing is lost either
// way.
TEST(TrainingStatePrecision, MastersPassBetweenFloat32AndBfloat16) {
  const Communicator world = Communicator::world();
  SharedFolder folder(world);
  Model<float> single, back;
  Model<bfloat16> half;
  single.step(1);
  half.load(world, single.save(world, folder / "single", 1).path);
  EXPECT_EQ(masters(half), masters(single));
  EXPECT_EQ(to_vector(half.runtime.compute(), half.optimizer->exp_avg()),
            to_vector(single.runtime.compute(), single.optimizer->exp_avg()));
  const auto values = to_vector(half.runtime.compute(), half.parameters.value(0));
  const auto wide = to_vector(half.runtime.compute(), half.parameters.master(0));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i].bits, bfloat16(wide[i]).bits);
  back.load(world, half.save(world, folder / "half", 1).path);
  EXPECT_EQ(back.bytes(), single.bytes());
}

TEST(TrainingStatePrecision, WeightsAloneAreReadAsTheyAre) {
  const Communicator world = Communicator::world();
  SharedFolder folder(world);
  Model<bfloat16> half;
  half.step(1);
  half.save(world, folder.path(), 1);
  Runtime runtime;
  ParameterSet<bfloat16> inference;
  for (const ParameterInfo& info : half.parameters.infos())
    inference.declare(info.name, info.shape, info.decay, info.init, info.kept);
  inference.allocate(runtime, Purpose::inference);
  load_weights(runtime, folder.path(), Verify::hashes, inference);
  EXPECT_EQ(0, std::memcmp(to_vector(runtime.compute(), inference.flat_values()).data(),
                           to_vector(half.runtime.compute(), half.parameters.flat_values()).data(),
                           inference.flat_values().bytes()));
  EXPECT_EQ(to_vector(runtime.compute(), inference.master(3)),
            to_vector(half.runtime.compute(), half.parameters.master(3)));
  // A float32 model gets the rounded weights, and exact ones as they are.
  Model<float> single;
  load_weights(single.runtime, folder.path(), Verify::sizes, single.parameters);
  const auto got = to_vector(single.runtime.compute(), single.parameters.value(0));
  const auto want = to_vector(half.runtime.compute(), half.parameters.value(0));
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], widen(want[i]));
  EXPECT_EQ(to_vector(single.runtime.compute(), single.parameters.value(3)),
            to_vector(half.runtime.compute(), half.parameters.master(3)));
}

class Faults : public ::testing::Test {
 protected:
  Communicator world = Communicator::world();
  SharedFolder folder{world};
  Model<float> model;

  /// Rank 0 damages something, the others wait.
  template <class F>
  void on_root(F&& action) {
    if (world.is_root()) action();
    world.barrier();
  }
  template <class F>
  std::string failure(F&& action) {
    try {
      action();
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), ExitCode::checkpoint);
      return e.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }
};

TEST_F(Faults, MismatchNamesEveryTensor) {
  model.save(world, folder.path(), 1);
  Model<float> other(
      {{"embed.weight", {40, 8}}, {"layer.0.norm", {9}}, {"layer.0.w", {9, 30}}, {"layer.2.w", {2, 2}}});
  const std::string text = failure([&] { other.load(world, folder.path()); });
  for (const char* part :
       {"shape: embed.weight is [40, 9], the model has [40, 8]", "shape: exp_avg_sq.embed.weight",
        "missing: layer.2.w [2, 2]", "missing: exp_avg.layer.2.w", "unknown: layer.1.scale []",
        "unknown: exp_avg.layer.1.scale"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in " << text;
  EXPECT_EQ(text.find("layer.0.norm"), std::string::npos);
  Model<double> twice;
  EXPECT_NE(failure([&] {
              twice.load(world, folder.path());
            }).find("dtype: embed.weight is F32, the model has F64"),
            std::string::npos);
}

TEST_F(Faults, DamagedNewestFallsBackLoudly) {
  model.step(1);
  model.save(world, folder.path(), 1);
  const std::string good = model.bytes();
  model.step(2);
  const auto newest = model.save(world, folder.path(), 2).path;
  on_root([&] { test::flip_byte(newest / shard("optim", 0, world.size())); });
  Model<float> loaded;
  const auto result = loaded.resume(world, folder.path());
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->state.step, 1);
  EXPECT_EQ(loaded.bytes(), good);
  ASSERT_EQ(result->warnings.size(), 1u);
  EXPECT_NE(result->warnings[0].find("content is damaged"), std::string::npos);
  EXPECT_NE(result->warnings[0].find("step-00000002"), std::string::npos);
  // Asked for by name, it is an error instead.
  EXPECT_NE(failure([&] { loaded.load(world, newest); }).find("content is damaged"), std::string::npos);
}

TEST_F(Faults, EveryKindOfDamageIsFound) {
  using Path = std::filesystem::path;
  const int ranks = world.size();
  const std::vector<std::pair<const char*, std::function<void(const Path&)>>> kinds = {
      {"no file COMMIT", [](const Path& p) { std::filesystem::remove(p / "COMMIT"); }},
      {"cannot open", [](const Path& p) { std::filesystem::remove(p / "manifest.json"); }},
      {"damaged", [](const Path& p) { std::filesystem::resize_file(p / "manifest.json", 100); }},
      {"version 7",
       [](const Path& p) {
         std::string text = test::read_file(p / "manifest.json");
         text.replace(text.find("\"version\": 1"), 12, "\"version\": 7");
         test::write_file(p / "manifest.json", text);
       }},
      {"cannot be read", [](const Path& p) { std::filesystem::remove(p / "state.json"); }},
      {"content is damaged", [](const Path& p) { test::flip_byte(p / "config/run.yaml"); }},
      {"bytes, manifest.json says",
       [ranks](const Path& p) { std::filesystem::resize_file(p / shard("model", 0, ranks), 50); }},
  };
  for (const auto& [message, damage] : kinds) {
    const auto path = model.save(world, folder.path(), 5).path;
    on_root([&, &do_damage = damage] { do_damage(path); });
    const std::string text = failure([&] { model.load(world, path); });
    EXPECT_NE(text.find(message), std::string::npos) << text;
    world.barrier();
  }
}

TEST_F(Faults, NothingUsableIsAnErrorButNothingAtAllIsNot) {
  EXPECT_FALSE(model.resume(world, folder / "none").has_value());
  EXPECT_FALSE(model.resume(world, folder.path()).has_value());
  EXPECT_NE(failure([&] { model.load(world, folder / "none"); }).find("does not exist"), std::string::npos);
  EXPECT_NE(failure([&] { model.load(world, folder.path()); }).find("holds none"), std::string::npos);
  model.save(world, folder.path(), 1);
  on_root([&] { test::flip_byte(folder / "step-00000001" / "state.json"); });
  EXPECT_NE(failure([&] { model.resume(world, folder.path()); }).find("no usable checkpoint"),
            std::string::npos);
}

TEST_F(Faults, LeftoversGoAndNewerOnesAreMentioned) {
  model.save(world, folder.path(), 5);
  model.save(world, folder.path(), 6);
  on_root([&] {
    for (const char* name : {"step-00000004.tmp", "step-00000003", "step-00000009.tmp"})
      std::filesystem::create_directory(folder / name);
  });
  const auto resumed = model.resume(world, folder.path());
  EXPECT_EQ(resumed->state.step, 6);
  if (world.is_root()) {
    EXPECT_EQ(resumed->warnings.size(), 2u);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000004.tmp"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000003"));
  EXPECT_TRUE(std::filesystem::exists(folder / "step-00000009.tmp"));
  const auto older = model.load(world, folder / "step-00000005");
  ASSERT_EQ(older.warnings.size(), 1u);
  EXPECT_NE(older.warnings[0].find("newer checkpoints"), std::string::npos);
}

TEST_F(Faults, OneFailingRankFailsAllAndLeavesTheOldCheckpoint) {
  model.save(world, folder.path(), 1);
  const int last = world.size() - 1;
  const auto failing = folder / "step-00000002.tmp" / (shard("optim", last, world.size()) + ".part");
  files::set_hook([&](files::Operation operation, const std::filesystem::path& path) {
    return world.rank() == last && path == failing && operation == files::Operation::write ? EIO : 0;
  });
  const std::string text = failure([&] { model.save(world, folder.path(), 2); });
  files::set_hook({});
  EXPECT_NE(text.find("cannot write " + failing.string()), std::string::npos) << text;
  EXPECT_EQ(world.broadcast(text), text);
  world.barrier();
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000002.tmp"));
  EXPECT_EQ(find_latest(folder.path()), folder / "step-00000001");
}

TEST_F(Faults, BadStatesAreRefusedBeforeAnythingIsWritten) {
  TrainingState state;
  const auto save = [&] {
    save_training_state(world, model.runtime, folder / "c", state, model.parameters, *model.optimizer, {});
  };
  state.extra_json = "[1]";
  EXPECT_NE(failure(save).find("JSON object"), std::string::npos);
  state.extra_json = "{";
  EXPECT_NE(failure(save).find("JSON"), std::string::npos);
  state.extra_json = "{}";
  for (const char* name : {"../x", "a/b", "", "run.yaml"}) {
    state.config_files = {{name, ""}};
    failure(save);
  }
  state.config_files.clear();
  state.step = -1;
  failure(save);
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST_F(Faults, WeightsAloneLoadIntoAnyFloatType) {
  model.step(1);
  model.save(world, folder.path(), 3);
  on_root([&] { std::filesystem::remove(folder / "step-00000003" / "state.json"); });
  Model<double> wide;
  const auto path = load_weights(wide.runtime, folder / "step-00000003", Verify::hashes, wide.parameters);
  EXPECT_EQ(path, folder / "step-00000003");
  const auto a = to_vector(model.runtime.compute(), model.parameters.flat_values());
  const auto b = to_vector(wide.runtime.compute(), wide.parameters.flat_values());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(static_cast<double>(a[i]), b[i]);
  EXPECT_THROW(load_weights(wide.runtime, folder.path(), Verify::hashes, wide.parameters), CheckpointError);
  world.barrier();
  model.save(world, folder.path(), 4);
  EXPECT_EQ(load_weights(wide.runtime, folder.path(), Verify::sizes, wide.parameters),
            folder / "step-00000004");
  EXPECT_THROW(resolve_checkpoint(folder / "none"), CheckpointError);
}

}  // namespace
}  // namespace deltaport
