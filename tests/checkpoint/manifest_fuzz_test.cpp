// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/manifest.hpp"
#include "checkpoint/shards.hpp"
#include "checkpoint/state_json.hpp"
#include "checkpoint/temp_folder.hpp"

namespace deltaport::checkpoint {
namespace {

std::string damage(std::string text, std::mt19937& random) {
  for (unsigned edits = 1 + random() % 3; edits > 0 && !text.empty(); --edits) {
    const std::size_t at = random() % text.size();
    switch (random() % 3) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 12);
        break;
      default:
        text.insert(at, text.substr(random() % text.size(), random() % 20));
    }
  }
  return text;
}

Manifest example() {
  Manifest m;
  m.step = 3;
  m.seed = 1;
  m.files["model-00001-of-00001.safetensors"] = {10, "ab"};
  m.tensors["w"] = {FileDtype::bf16, {2, 3}, {{"model-00001-of-00001.safetensors", 0, 6}}};
  return m;
}

TEST(Manifest, RoundTrip) {
  const std::string text = to_json(example());
  EXPECT_EQ(to_json(parse_manifest(text, "m")), text);
}

TEST(Manifest, RandomDamageNeverCrashes) {
  std::mt19937 random(1);
  int rejected = 0;
  for (int round = 0; round < 3000; ++round) {
    try {
      parse_manifest(damage(to_json(example()), random), "m");
    } catch (const CheckpointError&) {
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 1000);
}

TEST(Manifest, FilesCannotLeadOutOfTheFolder) {
  for (const char* name : {"/etc/passwd", "../other", "a/../../b", ""}) {
    Manifest m = example();
    m.files[name] = {1, "00"};
    const std::string message = test::message_of<CheckpointError>([&] { parse_manifest(to_json(m), "m"); });
    EXPECT_NE(message.find("leads out"), std::string::npos) << name;
  }
}

TEST(State, RandomDamageNeverCrashes) {
  std::mt19937 random(2);
  int rejected = 0;
  for (int round = 0; round < 3000; ++round) {
    try {
      parse_state(damage(to_json(TrainingState{}, 4), random), "s");
    } catch (const CheckpointError&) {
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 1000);
}

TEST(Owners, SharesAreContiguousCompleteAndEven) {
  std::vector<ParameterInfo> infos(100);
  for (std::size_t i = 0; i < infos.size(); ++i) infos[i].shape = Shape{static_cast<std::int64_t>(1 + i % 7)};
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const std::vector<int> owner = owners(infos, ranks);
    std::vector<std::int64_t> load(static_cast<std::size_t>(ranks), 0);
    for (std::size_t i = 0; i < owner.size(); ++i) {
      if (i > 0) {
        EXPECT_GE(owner[i], owner[i - 1]);
      }
      load.at(static_cast<std::size_t>(owner[i])) += infos[i].shape.size();
    }
    for (const std::int64_t elements : load) EXPECT_NEAR(static_cast<double>(elements), 395.0 / ranks, 8.0);
  }
  EXPECT_EQ(owners({infos[0]}, 5).size(), 1u);  // more ranks than parameters
}

}  // namespace
}  // namespace deltaport::checkpoint
