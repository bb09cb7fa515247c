// SPDX-License-Identifier: Apache-2.0
// Damaged files: each known kind gives its own message, and no random damage does worse than an exception.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport {
namespace {

using test::message_of;
using test::read_file;
using test::TempFolder;
using test::write_file;

std::string with_length(std::uint64_t n, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&n), 8) + rest;
}
std::string raw_file(const std::string& json, std::size_t data_bytes) {
  return with_length(json.size(), json + std::string(data_bytes, '\1'));
}
/// One tensor "t" with this dtype, shape text and offsets text.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets,
                std::size_t data_bytes) {
  return raw_file(
      R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
      data_bytes);
}

struct BadCase {
  const char* name;
  std::string bytes;
  const char* message;
};

std::vector<BadCase> bad_cases() {
  const std::string ab = R"("dtype":"U8","shape":[2],"data_offsets":)";
  return {
      {"empty file", "", "too small for the header length"},
      {"seven bytes", "1234567", "too small for the header length"},
      {"length beyond file", with_length(100, "{}"), "beyond the end of the file"},
      {"length huge", with_length(~std::uint64_t{0}, "{}"), "above the limit"},
      {"length above limit", with_length(100'000'001, "{}"), "above the limit"},
      {"length zero", with_length(0, ""), "does not start with '{'"},
      {"no brace", raw_file(" {}", 0), "does not start with '{'"},
      {"list", raw_file("[]", 0), "does not start with '{'"},
      {"bad UTF-8", raw_file("{\"\xc3\x28\":{}}", 0), "ill-formed UTF-8"},
      {"cut JSON", raw_file("{\"a\":", 0), "not valid JSON"},
      {"trailing text", raw_file("{} x", 0), "not valid JSON"},
      {"zero byte", raw_file(std::string("{}\0\0", 4), 0), "zero byte"},
      {"duplicate name", raw_file("{\"a\":{" + ab + "[0,2]},\"a\":{" + ab + "[2,4]}}", 4),
       "\"a\": the name appears twice"},
      {"duplicate key", raw_file(R"({"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1),
       "\"dtype\" appears twice"},
      {"duplicate metadata", raw_file(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "\"k\" appears twice"},
      {"metadata number", raw_file(R"({"__metadata__":{"k":1}})", 0), "a number"},
      {"metadata object", raw_file(R"({"__metadata__":{"k":{}}})", 0), "an object"},
      {"metadata null", raw_file(R"({"__metadata__":null})", 0), "null"},
      {"tensor is a list", raw_file(R"({"t":[1]})", 0), "a list"},
      {"unknown key", raw_file(R"({"t":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":[]}})", 1),
       "unknown key \"x\""},
      {"missing dtype", raw_file(R"({"t":{"shape":[],"data_offsets":[0,1]}})", 1), "\"dtype\" is missing"},
      {"missing shape", raw_file(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), "\"shape\" is missing"},
      {"missing offsets", raw_file(R"({"t":{"dtype":"U8","shape":[]}})", 1), "\"data_offsets\" is missing"},
      {"unknown dtype", one("F33", "[1]", "[0,4]", 4), "unknown dtype \"F33\""},
      {"negative extent", one("U8", "[-1]", "[0,1]", 1), "negative number -1"},
      {"fraction", one("U8", "[1.0]", "[0,1]", 1), "not an integer"},
      {"beyond 64 bits", one("U8", "[99999999999999999999]", "[0,1]", 1), "overflows 64 bits"},
      {"beyond int64", one("U8", "[18446744073709551615]", "[0,1]", 1), "overflow"},
      {"three offsets", one("U8", "[1]", "[0,1,2]", 1), "two numbers"},
      {"nested list", one("U8", "[[1]]", "[0,1]", 1), "a list"},
      {"shape overflow", one("F32", "[4294967296,4294967296,4294967296]", "[0,4]", 4), "size overflow"},
      {"byte overflow", one("F64", "[1152921504606846976,4]", "[0,0]", 0), "size overflow"},
      {"part of a byte", one("F4", "[3]", "[0,2]", 2), "part of a byte"},
      {"size mismatch", one("F32", "[2]", "[0,4]", 4), "needs 8 bytes, data_offsets give 4"},
      {"reversed offsets", one("U8", "[1]", "[1,0]", 1), "end before they begin"},
      {"hole at start", one("U8", "[1]", "[1,2]", 2), "hole"},
      {"hole between", raw_file("{\"a\":{" + ab + "[0,2]},\"b\":{" + ab + "[3,5]}}", 5), "hole"},
      {"overlap", raw_file("{\"a\":{" + ab + "[0,2]},\"b\":{" + ab + "[1,3]}}", 3), "overlaps"},
      {"same range twice", raw_file("{\"a\":{" + ab + "[0,2]},\"b\":{" + ab + "[0,2]}}", 2), "overlaps"},
      {"truncated data", one("F32", "[2]", "[0,8]", 7), "truncated"},
      {"bytes left over", one("F32", "[2]", "[0,8]", 9), "belong to none"},
  };
}

TEST(SafetensorsFuzz, EveryKnownDefectHasItsMessage) {
  TempFolder folder;
  const auto path = folder / "bad.safetensors";
  for (const BadCase& bad : bad_cases()) {
    write_file(path, bad.bytes);
    const std::string message = message_of<CheckpointError>([&] { SafetensorsReader reader(path); });
    EXPECT_NE(message.find(bad.message), std::string::npos) << bad.name << ": " << message;
    EXPECT_NE(message.find("bad.safetensors"), std::string::npos) << bad.name;
  }
}

TEST(SafetensorsFuzz, OriginDecidesTheErrorType) {
  TempFolder folder;
  const auto path = folder / "bad";
  write_file(path, "x");
  EXPECT_THROW(SafetensorsReader(path, FileOrigin::data), DataError);
  try {
    SafetensorsReader reader(path, FileOrigin::user);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
  }
  EXPECT_NE(message_of<CheckpointError>([&] { SafetensorsReader(folder / "none"); }).find("cannot open"),
            std::string::npos);
  EXPECT_NE(message_of<CheckpointError>([&] { SafetensorsReader(folder.path()); }).find("not a regular file"),
            std::string::npos);
}

TEST(SafetensorsFuzz, FileThatShrinksIsAnError) {
  TempFolder folder;
  write_file(folder / "t", one("U8", "[100]", "[0,100]", 100));
  const SafetensorsReader reader(folder / "t");
  std::filesystem::resize_file(folder / "t", 80);
  EXPECT_NE(message_of<CheckpointError>([&] { reader.read<std::int32_t>("t"); }).find("truncated"),
            std::string::npos);
}

TEST(SafetensorsFuzz, RandomDamageNeverCrashes) {
  TempFolder folder;
  const auto path = folder / "t";
  SafetensorsWriter writer;
  const std::vector<float> x(6, 1.0f);
  const std::vector<std::int64_t> y = {1, 2};
  writer.add("layer.weight", Shape{2, 3}, x);
  writer.add("layer.bias", Shape{2}, y);
  writer.set_metadata("k", "v");
  writer.write(path);
  const std::string good = read_file(path);
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < edits && !bytes.empty(); ++e) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "{}[]\",:0123456789- "[random() % 19];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 16));
          break;
        default:
          bytes.resize(at);
      }
    }
    write_file(path, bytes);
    try {
      const SafetensorsReader reader(path);
      for (const TensorEntry& t : reader.tensors()) {
        std::vector<char> data(t.end - t.begin);
        reader.read_bytes(t, 0, data.size(), data.data());
      }
      ++accepted;
    } catch (const CheckpointError&) {
    }
  }
  EXPECT_LT(accepted, 4000);
}

}  // namespace
}  // namespace deltaport
