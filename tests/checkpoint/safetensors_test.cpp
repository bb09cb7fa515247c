// SPDX-License-Identifier: Apache-2.0
#include "deltaport/checkpoint/safetensors.hpp"
#include "deltaport/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "checkpoint/temp_folder.hpp"

namespace deltaport {
namespace {

using test::message_of;
using test::read_file;
using test::TempFolder;
using test::write_file;

std::string raw_file(const std::string& json, const std::string& data) {
  const std::uint64_t n = json.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + json + data;
}

TEST(Safetensors, WritesTheExactBytesOfTheFormat) {
  TempFolder folder;
  SafetensorsWriter writer;
  const std::vector<float> b = {1.0f, -2.0f};
  const std::vector<std::int32_t> a = {7};
  const std::vector<std::int64_t> z = {9};
  writer.add("a", Shape{1}, a);
  writer.add("b", Shape{2, 1}, b);
  writer.add("z", Shape{}, z);
  writer.set_metadata("note", "x\"\n");
  const FileDigest digest = writer.write(folder / "t.safetensors");
  std::string json =
      R"({"__metadata__":{"format":"pt","note":"x\"\n"},"z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},"a":{"dtype":"I32","shape":[1],"data_offsets":[16,20]}})";
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string data(20, '\0');
  std::memcpy(data.data(), z.data(), 8);
  std::memcpy(data.data() + 8, b.data(), 8);
  std::memcpy(data.data() + 16, a.data(), 4);
  EXPECT_EQ(read_file(folder / "t.safetensors"), raw_file(json, data));
  EXPECT_EQ(digest.bytes, 8 + json.size() + 20);
  EXPECT_EQ(digest.xxh3_128.size(), 32u);
  EXPECT_FALSE(std::filesystem::exists(folder / "t.safetensors.part"));
}

TEST(Safetensors, RoundTripsAllTypesAndShapes) {
  TempFolder folder;
  const std::vector<float> f = {1.5f, -0.0f, std::numeric_limits<float>::denorm_min(),
                                std::numeric_limits<float>::infinity()};
  const std::vector<double> d = {1.0 / 3.0, -1e300};
  const std::vector<std::int32_t> i = {std::numeric_limits<std::int32_t>::min(), 5};
  const std::vector<std::int64_t> l = {std::numeric_limits<std::int64_t>::max()};
  SafetensorsWriter writer;
  writer.add("f", Shape{2, 2}, f);
  writer.add("d", Shape{2}, d);
  writer.add("i", Shape{1, 2}, i);
  writer.add("l", Shape{}, l);
  writer.add("empty", Shape{3, 0}, std::vector<float>{});
  writer.write(folder / "t.safetensors");
  const SafetensorsReader reader(folder / "t.safetensors");
  EXPECT_EQ(std::memcmp(reader.read<float>("f").data(), f.data(), 16), 0);
  EXPECT_EQ(reader.read<double>("d"), d);
  EXPECT_EQ(reader.read<double>("f")[0], 1.5);
  EXPECT_EQ(reader.read<float>("d")[0], static_cast<float>(1.0 / 3.0));
  EXPECT_EQ(reader.read<std::int32_t>("i"), i);
  EXPECT_EQ(reader.read<std::int64_t>("i")[0], std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(reader.read<std::int64_t>("l"), l);
  EXPECT_TRUE(reader.read<float>("empty").empty());
  EXPECT_EQ(reader.at("empty").tensor_shape(), (Shape{3, 0}));
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_NE(message_of<CheckpointError>([&] { reader.read<std::int32_t>("l"); }).find("does not fit int32"),
            std::string::npos);
  EXPECT_NE(message_of<CheckpointError>([&] { reader.read<float>("i"); }).find("dtype I32"),
            std::string::npos);
  EXPECT_NE(message_of<CheckpointError>([&] { reader.at("nope"); }).find("the file has: l, d"),
            std::string::npos);
}

TEST(Safetensors, KeepsHalvesAsTheyAre) {
  TempFolder folder;
  const std::vector<float16> h{float16(1.5f), float16(-65504.0f), float16(0x1p-24f)};
  const std::vector<bfloat16> b{bfloat16(1.5f), bfloat16(-3e38f)};
  const std::vector<double> d{1.0 + 0x1p-11, 1e9, -0.1};
  SafetensorsWriter writer;
  writer.add("h", Shape{3}, h);
  writer.add("b", Shape{2}, b);
  writer.add("d", Shape{3}, d);
  writer.write(folder / "t.safetensors");
  const SafetensorsReader reader(folder / "t.safetensors");
  EXPECT_EQ(reader.at("h").dtype, FileDtype::f16);
  EXPECT_EQ(reader.at("b").dtype, FileDtype::bf16);
  EXPECT_EQ(std::memcmp(reader.read<float16>("h").data(), h.data(), 6), 0);
  EXPECT_EQ(std::memcmp(reader.read<bfloat16>("b").data(), b.data(), 4), 0);
  EXPECT_EQ(reader.read<double>("h")[1], -65504.0);
  EXPECT_EQ(reader.read<float16>("b")[0].bits, h[0].bits);
  EXPECT_EQ(reader.read<float16>("d")[0].bits, float16(1.0f).bits);  // half way: to even
  EXPECT_EQ(reader.read<float16>("d")[1].bits, 0x7c00);
  EXPECT_EQ(reader.read<bfloat16>("d")[2].bits, bfloat16(-0.1f).bits);
}

TEST(Safetensors, ConvertsEveryHalfAndBfloat16) {
  TempFolder folder;
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  SafetensorsWriter writer;
  const auto fill = [&](std::uint64_t first, std::uint64_t bytes, void* to) {
    std::memcpy(to, reinterpret_cast<const char*>(bits.data()) + first, bytes);
  };
  writer.add("h", FileDtype::f16, {65536}, fill);
  writer.add("b", FileDtype::bf16, {256, 256}, fill);
  writer.write(folder / "t.safetensors");
  const SafetensorsReader reader(folder / "t.safetensors");
  const auto h = reader.read<double>("h");
  const auto b = reader.read<float>("b");
  for (int i = 0; i < 65536; ++i) {
    const int exponent = (i >> 10) & 31, fraction = i & 1023;
    double expected = exponent == 0    ? std::ldexp(fraction, -24)
                      : exponent == 31 ? (fraction ? NAN : INFINITY)
                                       : std::ldexp(1024 + fraction, exponent - 25);
    if (i & 0x8000) expected = -expected;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(h[i])) << i;
    } else {
      ASSERT_EQ(h[i], expected) << i;
    }
    std::uint32_t word;
    std::memcpy(&word, &b[i], 4);
    ASSERT_EQ(word, static_cast<std::uint32_t>(i) << 16);
  }
}

TEST(Safetensors, BytesDoNotDependOnTheOrderOfAdding) {
  TempFolder folder;
  const std::vector<float> x = {1, 2, 3};
  const std::vector<double> y = {4};
  SafetensorsWriter one, two;
  one.add("x", Shape{3}, x);
  one.add("y", Shape{1}, y);
  one.add("w", Shape{3}, x);
  two.add("w", Shape{3}, x);
  two.add("y", Shape{1}, y);
  two.add("x", Shape{3}, x);
  EXPECT_EQ(one.write(folder / "one"), two.write(folder / "two"));
  EXPECT_EQ(read_file(folder / "one"), read_file(folder / "two"));
}

TEST(Safetensors, StreamsInBoundedPieces) {
  TempFolder folder;
  constexpr std::int64_t n = 3'000'001;
  std::uint64_t largest = 0;
  SafetensorsWriter writer;
  writer.add("big", FileDtype::i32, {n}, [&](std::uint64_t first, std::uint64_t bytes, void* to) {
    largest = std::max(largest, bytes);
    for (std::uint64_t i = 0; i < bytes / 4; ++i)
      static_cast<std::uint32_t*>(to)[i] = static_cast<std::uint32_t>(first / 4 + i);
  });
  writer.write(folder / "t");
  EXPECT_LE(largest, std::uint64_t{4} << 20);
  const SafetensorsReader reader(folder / "t");
  const auto values = reader.read<std::int64_t>("big");
  for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(values[i], i);
  std::int64_t part[5];
  reader.read_range(reader.at("big"), 1'500'000, 5, part);
  EXPECT_EQ(part[4], 1'500'004);
  EXPECT_THROW(reader.read_range(reader.at("big"), n - 2, 5, part), ShapeError);
}

TEST(Safetensors, ReadsDataAtUnalignedOffsets) {
  TempFolder folder;
  const float f = 3.25f;
  std::string data(1, '\5');
  data.append(reinterpret_cast<const char*>(&f), 4);
  write_file(folder / "t", raw_file(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                                    R"("a":{"shape":[1],"dtype":"U8","data_offsets":[0,1]}}   )",
                                    data));
  const SafetensorsReader reader(folder / "t");
  EXPECT_EQ(reader.read<float>("b")[0], f);
  EXPECT_EQ(reader.read<std::int32_t>("a")[0], 5);
  EXPECT_EQ(reader.tensors()[0].name, "a");
}

TEST(Safetensors, WriterRefusesBadRequests) {
  TempFolder folder;
  SafetensorsWriter writer(FileOrigin::user);
  const std::vector<float> x = {1};
  writer.add("x", Shape{1}, x);
  EXPECT_THROW(writer.add("x", Shape{1}, x), Error);
  EXPECT_THROW(writer.add("__metadata__", Shape{1}, x), Error);
  EXPECT_THROW(writer.add("y", Shape{2}, x), ShapeError);
  EXPECT_THROW(writer.add("y", FileDtype::f4, {3}, nullptr), Error);
  EXPECT_THROW(writer.add("y", FileDtype::f64, {1ll << 40, 1ll << 40}, nullptr), Error);
  try {
    writer.write(folder / "no/such/folder");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
    EXPECT_NE(std::string(e.what()).find("cannot create"), std::string::npos);
  }
  writer.add("\xff", Shape{1}, x);
  EXPECT_NE(message_of<Error>([&] { writer.write(folder / "t"); }).find("not UTF-8"), std::string::npos);
}

}  // namespace
}  // namespace deltaport
