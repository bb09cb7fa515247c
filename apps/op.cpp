// SPDX-License-Identifier: Apache-2.0
// One recurrence on tensors from a file, so that anyone can hold it against another implementation.
#include <algorithm>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <set>

#include "command.hpp"
#include "deltaport/checkpoint/safetensors.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/recurrence/recurrence.hpp"

namespace deltaport::app {
namespace {

using recurrence::Gdn2Inputs;
using recurrence::GdnInputs;
using recurrence::Implementation;

enum class Rule { gdn, gdn2 };

struct OpOptions {
  Rule rule = Rule::gdn;
  std::string in, out, implementation = "auto", dtype;
  int chunk_size = 64;
  std::optional<double> scale;
  bool backward = false;
};

/// A mistake in the user's file: exit code 2.
struct OpError : Error {
  explicit OpError(const std::string& message) : Error(message, ExitCode::bad_input) {}
};

/// The input file: which tensors it may hold, and their way onto the device.
class OpInput {
 public:
  OpInput(const OpOptions& options) : reader_(options.in, FileOrigin::user) {
    std::set<std::string> known{"q", "k", "v", "g", "initial_state", "cu_seqlens", "do", "dht"};
    if (options.rule == Rule::gdn)
      known.insert("beta");
    else
      known.insert({"b", "w"});
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    for (const TensorEntry& tensor : reader_.tensors())
      DELTAPORT_VALIDATE(known.count(tensor.name), OpError, options.in, ": unknown tensor \"", tensor.name,
                         "\"; this operator takes ", names);
  }

  /// float32 or float64: as asked, else that of q, else float32.
  Dtype dtype(const OpOptions& options) const {
    if (options.dtype == "float64") return Dtype::f64;
    if (options.dtype == "float32") return Dtype::f32;
    return reader_.at("q").dtype == FileDtype::f64 ? Dtype::f64 : Dtype::f32;
  }

  /// A floating-point tensor as X; absent optional ones are empty.
  enum class Need { required, optional };
  template <class X>
  Tensor<X> load(Runtime& runtime, const char* name, Need need = Need::required) const {
    const TensorEntry* entry = need == Need::required ? &reader_.at(name) : reader_.find(name);
    if (entry == nullptr) return {};
    const FileDtype d = entry->dtype;
    DELTAPORT_VALIDATE(
        d == FileDtype::f32 || d == FileDtype::f64 || d == FileDtype::f16 || d == FileDtype::bf16, OpError,
        reader_.path().string(), ": tensor \"", name, "\" is ", name_of(d),
        ", expected F64, F32, BF16 or F16");
    DELTAPORT_VALIDATE(entry->elements() > 0, OpError, reader_.path().string(), ": tensor \"", name, "\" ",
                       entry->shape_string(), " is empty");
    return from_vector<X>(runtime.compute(), runtime.arena(), name, entry->tensor_shape(),
                          reader_.read<X>(name));
  }

  /// Sequence boundaries, checked on the host, where devices cannot check them.
  Tensor<std::int32_t> load_boundaries(Runtime& runtime, std::int64_t tokens) const {
    const TensorEntry* entry = reader_.find("cu_seqlens");
    if (entry == nullptr) return {};
    DELTAPORT_VALIDATE(entry->dtype == FileDtype::i32 || entry->dtype == FileDtype::i64, OpError,
                       reader_.path().string(), ": tensor \"cu_seqlens\" is ", name_of(entry->dtype),
                       ", expected I32 or I64");
    DELTAPORT_VALIDATE(entry->shape.size() == 1 && entry->elements() >= 2, OpError, reader_.path().string(),
                       ": tensor \"cu_seqlens\" is ", entry->shape_string(),
                       ", expected [N + 1] with N >= 1");
    const auto values = reader_.read<std::int64_t>("cu_seqlens");
    const std::int64_t limit = std::min<std::int64_t>(tokens, std::numeric_limits<std::int32_t>::max());
    DELTAPORT_VALIDATE(
        values.front() == 0 && values.back() <= limit && std::is_sorted(values.begin(), values.end()),
        OpError, reader_.path().string(),
        ": cu_seqlens must start at 0, ascend and end at most at T = ", tokens);
    return from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "cu_seqlens",
                                     {static_cast<std::int64_t>(values.size())},
                                     {values.begin(), values.end()});
  }

 private:
  SafetensorsReader reader_;
};

/// Results on their way into the output file.
class OpOutput {
 public:
  explicit OpOutput(Runtime& runtime) : runtime_(runtime) {}
  template <class X>
  void add(const char* name, const Tensor<X>& x) {
    if (!x.defined()) return;
    if constexpr (std::is_same_v<X, float>)
      writer_.add(name, x.shape(), floats_.emplace_back(to_vector(runtime_.compute(), x)));
    else
      writer_.add(name, x.shape(), doubles_.emplace_back(to_vector(runtime_.compute(), x)));
  }
  void write(const std::string& path) const { writer_.write(path); }

 private:
  Runtime& runtime_;
  SafetensorsWriter writer_{FileOrigin::user};
  std::list<std::vector<float>> floats_;  // the writer keeps references
  std::list<std::vector<double>> doubles_;
};

template <class Inputs, class T>
void load_shared(Runtime& runtime, const OpInput& file, Inputs& x) {
  using Need = OpInput::Need;
  x.q = file.load<T>(runtime, "q");
  x.k = file.load<T>(runtime, "k");
  x.v = file.load<T>(runtime, "v");
  x.g = file.load<T>(runtime, "g");
  x.initial_state = file.load<T>(runtime, "initial_state", Need::optional);
  DELTAPORT_VALIDATE(x.q.rank() == 4, OpError, "q has shape ", x.q.shape().str(), ", expected [B, T, H, K]");
  x.cu_seqlens = file.load_boundaries(runtime, x.q.extent(1));
}

template <class T>
struct Incoming {
  Tensor<T> d_o, d_final_state;
};

/// The gradients under their names in the file, so that a wrong shape is reported by that name.
template <class T, class Result>
Incoming<T> load_gradients(Runtime& runtime, const OpInput& file, const Result& forward) {
  const Incoming<T> in{file.load<T>(runtime, "do"), file.load<T>(runtime, "dht", OpInput::Need::optional)};
  DELTAPORT_VALIDATE(in.d_o.shape() == forward.o.shape(), OpError, "do has shape ", in.d_o.shape().str(),
                     ", expected [B, T, HV, V] = ", forward.o.shape().str());
  DELTAPORT_VALIDATE(!in.d_final_state.defined() || in.d_final_state.shape() == forward.final_state.shape(),
                     OpError, "dht has shape ", in.d_final_state.shape().str(),
                     ", expected [N, HV, K, V] = ", forward.final_state.shape().str());
  return in;
}

template <class Gradients>
void add_shared(OpOutput& out, const Gradients& gradients) {
  out.add("dq", gradients.dq);
  out.add("dk", gradients.dk);
  out.add("dv", gradients.dv);
  out.add("dg", gradients.dg);
  out.add("dinitial_state", gradients.dinitial_state);
}

template <class T>
void run_gdn(Runtime& runtime, const OpInput& file, const recurrence::Options& options, OpOutput& out) {
  GdnInputs<T> x;
  load_shared<GdnInputs<T>, T>(runtime, file, x);
  x.beta = file.load<T>(runtime, "beta");
  const auto result = recurrence::gdn_forward<T>(runtime, x, options);
  out.add("o", result.o);
  out.add("final_state", result.final_state);
  if (!options.save_for_backward) return;
  const auto in = load_gradients<T>(runtime, file, result);
  const auto gradients = recurrence::gdn_backward<T>(runtime, result.saved, in.d_o, in.d_final_state);
  add_shared(out, gradients);
  out.add("dbeta", gradients.dbeta);
}

template <class T>
void run_gdn2(Runtime& runtime, const OpInput& file, const recurrence::Options& options, OpOutput& out) {
  Gdn2Inputs<T> x;
  load_shared<Gdn2Inputs<T>, T>(runtime, file, x);
  x.b = file.load<T>(runtime, "b");
  x.w = file.load<T>(runtime, "w");
  const auto result = recurrence::gdn2_forward<T>(runtime, x, options);
  out.add("o", result.o);
  out.add("final_state", result.final_state);
  if (!options.save_for_backward) return;
  const auto in = load_gradients<T>(runtime, file, result);
  const auto gradients = recurrence::gdn2_backward<T>(runtime, result.saved, in.d_o, in.d_final_state);
  add_shared(out, gradients);
  out.add("db", gradients.db);
  out.add("dw", gradients.dw);
}

template <class T>
void run_op_as(Runtime& runtime, const OpInput& file, const OpOptions& options) {
  recurrence::Options call;
  call.scale = options.scale.value_or(0.0);
  call.chunk_size = options.chunk_size;
  call.output_final_state = true;
  call.save_for_backward = options.backward;
  if (options.implementation == "reference") call.implementation = Implementation::reference;
  if (options.implementation == "portable") call.implementation = Implementation::portable;
  OpOutput out(runtime);
  if (options.rule == Rule::gdn)
    run_gdn<T>(runtime, file, call, out);
  else
    run_gdn2<T>(runtime, file, call, out);
  out.write(options.out);
}

int run_op(const OpOptions& options) {
  DELTAPORT_VALIDATE(options.scale.value_or(1.0) != 0.0, OpError,
                     "--scale must not be 0; leave it out for K^-0.5");
  const OpInput file(options);
  const Dtype dtype = file.dtype(options);
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  if (dtype == Dtype::f64)
    run_op_as<double>(runtime, file, options);
  else
    run_op_as<float>(runtime, file, options);
  return 0;
}

constexpr const char* gdn_shapes =
    "Tensors in (row-major; B batch, T tokens, H key heads, HV = G H value heads, K, V head sizes, N "
    "sequences):\n"
    "  q, k           [B, T, H, K]\n"
    "  v              [B, T, HV, V]\n"
    "  g              [B, T, HV]      log decay, <= 0\n"
    "  beta           [B, T, HV]\n"
    "  initial_state  [N, HV, K, V]   optional\n"
    "  cu_seqlens     [N + 1]         optional, I32 or I64, B = 1; else N = B\n"
    "  do             [B, T, HV, V]   with --backward\n"
    "  dht            [N, HV, K, V]   optional, with --backward\n"
    "Tensors out: o, final_state; with --backward dq dk dv dg dbeta, and dinitial_state where there was an\n"
    "initial_state. S <- exp(g) S; e = beta (v - S^T k); S <- S + k e^T; o = scale S^T q.";
constexpr const char* gdn2_shapes =
    "Tensors in (row-major; B batch, T tokens, H key heads, HV = G H value heads, K, V head sizes, N "
    "sequences):\n"
    "  q, k           [B, T, H, K]\n"
    "  v              [B, T, HV, V]\n"
    "  g              [B, T, HV or H, K]  log decay, <= 0\n"
    "  b              as g                erase gate\n"
    "  w              [B, T, HV, V]       write gate\n"
    "  initial_state  [N, HV, K, V]       optional\n"
    "  cu_seqlens     [N + 1]             optional, I32 or I64, B = 1; else N = B\n"
    "  do             [B, T, HV, V]       with --backward\n"
    "  dht            [N, HV, K, V]       optional, with --backward\n"
    "Tensors out: o, final_state; with --backward dq dk dv dg db dw, and dinitial_state where there was an\n"
    "initial_state. S <- Diag(exp(g)) S; r = w v - S^T (b k); S <- S + k r^T; o = scale S^T q.";

void add_rule(CLI::App& op, Rule rule, Action& action) {
  const bool gdn = rule == Rule::gdn;
  auto* command = op.add_subcommand(gdn ? "gdn" : "gdn2", gdn ? "Gated DeltaNet" : "Gated DeltaNet 2");
  auto options = std::make_shared<OpOptions>();
  options->rule = rule;
  command->add_option("--in", options->in, "safetensors file with the inputs (F64, F32, BF16 or F16)")
      ->required();
  command->add_option("--out", options->out, "safetensors file to write")->required();
  command->add_option("--impl", options->implementation, "Implementation")
      ->check(CLI::IsMember({"auto", "reference", "portable"}))
      ->capture_default_str();
  command
      ->add_option("--dtype", options->dtype,
                   "Compute in float32 or float64 (default: the type of q, else float32)")
      ->check(CLI::IsMember({"float32", "float64"}));
  command->add_option("--chunk-size", options->chunk_size, "Tokens per chunk")
      ->check(CLI::IsMember({16, 32, 64}))
      ->capture_default_str();
  command->add_option("--scale", options->scale, "Factor on q (default: K^-0.5)");
  command->add_flag("--backward", options->backward, "Also compute the gradients");
  command->footer(gdn ? gdn_shapes : gdn2_shapes);
  command->callback([options, &action] { action = [options] { return run_op(*options); }; });
}

}  // namespace

void add_op(CLI::App& parent, const Invocation&, Action& action) {
  auto* op = parent.add_subcommand("op", "run one recurrence on tensors from a safetensors file");
  op->require_subcommand(1);
  add_rule(*op, Rule::gdn, action);
  add_rule(*op, Rule::gdn2, action);
}

}  // namespace deltaport::app
