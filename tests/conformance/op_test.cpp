// SPDX-License-Identifier: Apache-2.0
// `deltaport op` end to end: files in, files out, mistakes refused by name with exit code 2.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include "conformance/implementations.hpp"
#include "deltaport/checkpoint/safetensors.hpp"

namespace {

using namespace deltaport;
using namespace deltaport::conformance;

struct Field {
  Shape shape;
  std::vector<double> values;
};
using Fields = std::map<std::string, Field>;

Fields fields_of(const Problem<double>& p) {
  const Shape key{p.batch, p.tokens, p.key_heads, p.key_dim},
      value{p.batch, p.tokens, p.value_heads, p.value_dim};
  const Shape state{p.sequences(), p.value_heads, p.key_dim, p.value_dim};
  Fields out{{"q", {key, p.q}}, {"k", {key, p.k}}, {"v", {value, p.v}}, {"do", {value, p.d_o}}};
  const bool gdn = p.rule == Rule::gdn, raw_gate = p.activations.gate != Gate::log_decay;
  const Shape scalars{p.batch, p.tokens, p.value_heads}, gate{p.batch, p.tokens, p.gate_heads, p.key_dim};
  out[raw_gate ? "raw_gate" : "g"] = {gdn ? scalars : gate, p.g};
  if (gdn) {
    out[p.activations.beta == Beta::plain ? "beta" : "raw_beta"] = {scalars, p.beta};
  } else {
    out["b"] = {gate, p.b};
    out["w"] = {value, p.w};
  }
  const Shape heads{gdn ? p.value_heads : p.gate_heads};
  if (!p.A_log.empty()) out["A_log"] = {heads, p.A_log};
  if (!p.dt_bias.empty()) out["dt_bias"] = {gdn ? heads : Shape{p.gate_heads, p.key_dim}, p.dt_bias};
  if (!p.initial_state.empty()) out["initial_state"] = {state, p.initial_state};
  if (!p.d_final_state.empty()) out["dht"] = {state, p.d_final_state};
  return out;
}

/// Runs the executable in a folder of its own.
class Op : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("deltaport_op_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Halves are for what is of the type of q; the rest is float32 then.
  enum class Store { f64, f32, bf16, f16 };
  void write(const Fields& fields, const std::vector<std::int64_t>& boundaries = {},
             Store store = Store::f64) {
    SafetensorsWriter writer(FileOrigin::user);
    std::map<std::string, std::vector<float>> singles;
    std::map<std::string, std::vector<bfloat16>> brains;
    std::map<std::string, std::vector<float16>> halves;
    const std::set<std::string> of_type{"q", "k", "v", "do", "b", "w", "raw_gate", "raw_beta"};
    for (const auto& [name, field] : fields) {
      const std::vector<double>& values = field.values;
      if (store == Store::f64)
        writer.add(name, field.shape, values);
      else if (store == Store::bf16 && of_type.count(name))
        writer.add(name, field.shape, narrowed(values, brains[name]));
      else if (store == Store::f16 && of_type.count(name))
        writer.add(name, field.shape, narrowed(values, halves[name]));
      else
        writer.add(name, field.shape, narrowed(values, singles[name]));
    }
    if (!boundaries.empty())
      writer.add("cu_seqlens", Shape{static_cast<std::int64_t>(boundaries.size())}, boundaries);
    writer.write(path("in.safetensors"));
  }
  template <class X>
  static const std::vector<X>& narrowed(const std::vector<double>& values, std::vector<X>& to) {
    for (double value : values) to.push_back(static_cast<X>(static_cast<float>(value)));
    return to;
  }
  int run(const std::string& arguments) {
    const std::string command = std::string(DELTAPORT_EXECUTABLE) + " op " + arguments + " --in " +
                                path("in.safetensors") + " --out " + path("out.safetensors") + " > " +
                                path("log") + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string log() const {
    std::ifstream file(path("log"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void expect_output(const Values& expected, double tolerance) {
    const SafetensorsReader reader(path("out.safetensors"));
    EXPECT_EQ(reader.tensors().size(), expected.size());
    for (const auto& [name, values] : expected)
      EXPECT_LE(relative_error(reader.read<double>(name), values), tolerance) << name;
  }
  void expect_refused(const std::string& arguments, const std::string& expected) {
    EXPECT_EQ(run(arguments), 2) << log();
    EXPECT_NE(log().find(expected), std::string::npos) << "expected: " << expected << "\ngot: " << log();
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

const Sizes sizes{.batch = 2,
                  .tokens = 66,
                  .key_heads = 1,
                  .value_heads = 2,
                  .key_dim = 8,
                  .value_dim = 6,
                  .gate_heads = 1};

TEST_F(Op, ComputesBothRulesAndAllGradients) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    const auto problem = random_problem(rule, sizes, {-0.2}, 31);
    const std::string command = rule == Rule::gdn ? "gdn" : "gdn2";
    write(fields_of(problem));
    for (const char* options :
         {" --backward", " --backward --impl reference", " --backward --chunk-size 16"}) {
      ASSERT_EQ(run(command + options), 0) << log();
      expect_output(deltaport::oracle::solve(problem), 1e-10);
    }
    write(fields_of(problem), {}, Store::f32);
    ASSERT_EQ(run(command + " --backward"), 0) << log();
    EXPECT_EQ(SafetensorsReader(path("out.safetensors")).at("dq").dtype, FileDtype::f32);
    expect_output(deltaport::oracle::solve(problem), 1e-5);
  }
}

TEST_F(Op, TakesBoundariesScaleAndDtype) {
  auto problem = random_problem(
      Rule::gdn2, {.tokens = 20, .key_dim = 4, .value_dim = 4, .cu_seqlens = {0, 7, 18}}, {}, 32);
  problem.scale = 0.3;
  write(fields_of(problem), {0, 7, 18}, Store::f32);
  ASSERT_EQ(run("gdn2 --backward --scale 0.3 --dtype float64"), 0) << log();
  expect_output(deltaport::oracle::solve(problem), 1e-12);
}

// Halves go in and come out as they are; --dtype converts.
TEST_F(Op, ComputesInEveryType) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    const std::string command = rule == Rule::gdn ? "gdn --backward" : "gdn2 --backward";
    auto problem = rounded<bfloat16>(random_problem(rule, sizes, {-0.2}, 36));
    write(fields_of(problem), {}, Store::bf16);
    ASSERT_EQ(run(command), 0) << log();
    const SafetensorsReader reader(path("out.safetensors"));
    EXPECT_EQ(reader.at("o").dtype, FileDtype::bf16);
    EXPECT_EQ(reader.at("dg").dtype, FileDtype::f32);
    EXPECT_EQ(reader.at("final_state").dtype, FileDtype::f32);
    expect_output(deltaport::oracle::solve(problem), 0x1p-8);
    ASSERT_EQ(run(command + " --dtype float64"), 0) << log();
    expect_output(deltaport::oracle::solve(problem), 1e-10);
    problem = rounded<float16>(random_problem(rule, sizes, {-0.2}, 37));
    write(fields_of(problem), {}, Store::f16);
    ASSERT_EQ(run(command), 0) << log();
    EXPECT_EQ(SafetensorsReader(path("out.safetensors")).at("dv").dtype, FileDtype::f16);
    expect_output(deltaport::oracle::solve(problem), 0x1p-11);
    write(fields_of(problem));
    ASSERT_EQ(run(command + " --dtype f16"), 0) << log();
    expect_output(deltaport::oracle::solve(problem), 0x1p-11);
  }
}

TEST_F(Op, DoesEveryOption) {
  struct Flags {
    std::string text;
    Activations activations;
  };
  const std::vector<Flags> table{
      {" --qk-norm l2", {.l2_norm = true}},
      {" --gate softplus", {.gate = Gate::softplus}},
      {" --gate lower-bounded", {.gate = Gate::lower_bounded}},
      {" --gate lower-bounded --gate-lower-bound -1.5", {.gate = Gate::lower_bounded, .lower_bound = -1.5}},
      {" --beta sigmoid", {.beta = Beta::sigmoid}},
      {" --qk-norm l2 --gate softplus --beta doubled-sigmoid",
       {.l2_norm = true, .gate = Gate::softplus, .beta = Beta::doubled_sigmoid}},
  };
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (auto [text, activations] : table) {
      SCOPED_TRACE(text);
      if (rule == Rule::gdn2) {
        text += " --write-gate sigmoid";
        activations.write_sigmoid = true;
      }
      const auto problem = random_problem(rule, sizes, {-0.2}, 38, activations);
      write(fields_of(problem));
      ASSERT_EQ(run((rule == Rule::gdn ? "gdn --backward" : "gdn2 --backward") + text), 0) << log();
      expect_output(deltaport::oracle::solve(problem), 1e-10);
    }
}

TEST_F(Op, RefusesWrongOptions) {
  const auto raw = random_problem(Rule::gdn, sizes, {-0.2}, 39, {.gate = Gate::softplus});
  write(fields_of(raw));
  expect_refused("gdn", "unknown tensor \"A_log\"");
  expect_refused("gdn --gate relu", "--gate");
  expect_refused("gdn --gate softplus --gate-lower-bound -1", "--gate-lower-bound needs");
  expect_refused("gdn --gate lower-bounded --gate-lower-bound -5.5", "gate_lower_bound is -5.5");
  expect_refused("gdn --gate softplus --write-gate sigmoid", "--write-gate");
  expect_refused("gdn --gate softplus --dtype float8", "--dtype");
  Fields fields = fields_of(raw);
  fields.erase("A_log");
  write(fields);
  expect_refused("gdn --gate softplus", "tensor \"A_log\" is missing");
  EXPECT_EQ(run("gdn --gate lower-bounded"), 0) << log();
  fields["dt_bias"] = {{3}, {0, 0, 0}};
  write(fields);
  expect_refused("gdn --gate lower-bounded", "dt_bias has shape [3]");
  if (!recurrence::available(Implementation::cuda)) {
    write(fields_of(random_problem(Rule::gdn, sizes, {-0.2}, 40)));
    expect_refused("gdn --impl cuda", "implementation cuda is not available in this build");
  }
}

TEST_F(Op, ForwardAloneNeedsNoGradients) {
  const auto problem = random_problem(Rule::gdn, sizes, {-0.2}, 33);
  Fields fields = fields_of(problem);
  fields.erase("do");
  fields.erase("dht");
  fields.erase("initial_state");
  write(fields);
  ASSERT_EQ(run("gdn"), 0) << log();
  EXPECT_EQ(SafetensorsReader(path("out.safetensors")).tensors().size(), 2u);
  expect_refused("gdn --backward", "do");
}

TEST_F(Op, RefusesMistakesByName) {
  const auto problem = random_problem(Rule::gdn, sizes, {-0.2}, 34);
  const Fields valid = fields_of(problem);
  struct Mistake {
    const char* expected;
    std::function<void(Fields&)> make;
  };
  const auto reshape = [](const char* name, const Shape& shape) {
    return [=](Fields& fields) {
      fields[name] = {shape, std::vector<double>(static_cast<std::size_t>(shape.size()))};
    };
  };
  const std::vector<Mistake> mistakes{
      {"tensor \"beta\" is missing", [](Fields& fields) { fields.erase("beta"); }},
      {"tensor \"q\" is missing", [](Fields& fields) { fields.erase("q"); }},
      {"unknown tensor \"w\"", reshape("w", {2})},
      {"k has shape [2, 66, 1, 9]", reshape("k", {2, 66, 1, 9})},
      {"beta has shape [2, 66, 3]", reshape("beta", {2, 66, 3})},
      {"q has shape [4]", reshape("q", {4})},
      {"initial_state has shape [1, 2, 8, 6]", reshape("initial_state", {1, 2, 8, 6})},
      {"do has shape [2, 66, 2, 7]", reshape("do", {2, 66, 2, 7})},
      {"dht has shape [2, 2, 6, 8]", reshape("dht", {2, 2, 6, 8})},
      {"\"v\" [2, 0, 2, 6] is empty", reshape("v", {2, 0, 2, 6})},
  };
  for (const Mistake& mistake : mistakes) {
    Fields fields = valid;
    mistake.make(fields);
    write(fields);
    expect_refused("gdn --backward", mistake.expected);
  }
  write(valid, {0, 66});
  expect_refused("gdn", "cu_seqlens needs B = 1");
  const std::pair<std::vector<std::int64_t>, const char*> boundaries[] = {
      {{1, 5}, "cu_seqlens[0] is 1; they must start at 0"},
      {{0, 5, 3}, "cu_seqlens[2] is 3 after 5; they must start at 0, never fall"},
      {{0, 5, 67}, "cu_seqlens[2] is 67 after 5; they must start at 0, never fall, and end at T = 66"},
      {{0, -1, 5}, "cu_seqlens[1] is -1 after 0"},
  };
  for (const auto& [wrong, expected] : boundaries) {
    write(valid, wrong);
    expect_refused("gdn", expected);
  }
  write(valid);
  expect_refused("gdn --chunk-size 48", "--chunk-size");
  expect_refused("gdn --impl fastest", "--impl");
  expect_refused("gdn --scale 0", "--scale");
}

TEST_F(Op, RefusesWrongTypesAndFiles) {
  std::ofstream(path("in.safetensors")) << "not a tensor file";
  expect_refused("gdn", "in.safetensors");
  const auto problem = random_problem(Rule::gdn, sizes, {-0.2}, 35);
  Fields fields = fields_of(problem);
  SafetensorsWriter writer(FileOrigin::user);
  const std::vector<std::int32_t> integers(fields["v"].values.size());
  for (const auto& [name, field] : fields)
    if (name == "v")
      writer.add(name, field.shape, integers);
    else
      writer.add(name, field.shape, field.values);
  writer.write(path("in.safetensors"));
  expect_refused("gdn", "\"v\" is I32");
}

TEST_F(Op, WhatStandsUnderOutIsNotDestroyed) {
  const auto problem = random_problem(Rule::gdn, sizes, {-0.2}, 36);
  const Fields valid = fields_of(problem);
  write(valid);
  std::filesystem::create_symlink("in.safetensors", path("out.safetensors"));
  expect_refused("gdn", "is the file of --in");
  std::filesystem::remove(path("out.safetensors"));
  ASSERT_EQ(::mkfifo(path("out.safetensors").c_str(), 0600), 0);
  expect_refused("gdn", "out.safetensors: it exists and is not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(path("out.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(path("out.safetensors.part")));
}

}  // namespace
