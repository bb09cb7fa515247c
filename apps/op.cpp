// SPDX-License-Identifier: Apache-2.0
// One recurrence on tensors from a file, so that anyone can hold it against another implementation.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "command.hpp"
#include "deltaport/recurrence/recurrence.hpp"
#include "op_files.hpp"

namespace deltaport::app {
namespace {

using recurrence::BetaActivation;
using recurrence::GateActivation;
using recurrence::Gdn2Inputs;
using recurrence::GdnInputs;
using recurrence::Implementation;

enum class Rule { gdn, gdn2 };

struct OpOptions {
  Rule rule = Rule::gdn;
  std::string in, out, dtype;
  std::string implementation = "auto", qk_norm = "none", gate = "log-decay", beta = "plain",
              write_gate = "plain";
  int chunk_size = 64;
  std::optional<double> scale, gate_lower_bound;
  bool backward = false;

  bool activates_gate() const { return gate != "log-decay"; }
  bool activates_beta() const { return beta != "plain"; }
};

/// Words of an option, in the order of the library's enumerators.
const std::vector<std::string> implementations{"auto", "reference", "portable", "host", "cuda"};
const std::vector<std::string> qk_norms{"none", "l2"};
const std::vector<std::string> gates{"log-decay", "softplus", "lower-bounded"};
const std::vector<std::string> betas{"plain", "sigmoid", "doubled-sigmoid"};
const std::vector<std::string> write_gates{"plain", "sigmoid"};

template <class E>
E value_of(const std::vector<std::string>& words, const std::string& word) {
  return static_cast<E>(std::find(words.begin(), words.end(), word) - words.begin());
}

std::set<std::string> known_tensors(const OpOptions& options) {
  std::set<std::string> known{"q", "k", "v", "initial_state", "cu_seqlens", "do", "dht"};
  if (options.activates_gate())
    known.insert({"raw_gate", "A_log", "dt_bias"});
  else
    known.insert("g");
  if (options.rule == Rule::gdn2)
    known.insert({"b", "w"});
  else
    known.insert(options.activates_beta() ? "raw_beta" : "beta");
  return known;
}

Dtype dtype_of_call(const OpOptions& options, const OpInput& file) {
  for (Dtype each : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
    if (options.dtype == name_of(each)) return each;
  return file.dtype();
}

recurrence::Options call_options(const OpOptions& options) {
  recurrence::Options call;
  call.scale = options.scale.value_or(0.0);
  call.chunk_size = options.chunk_size;
  call.output_final_state = true;
  call.save_for_backward = options.backward;
  call.implementation = value_of<Implementation>(implementations, options.implementation);
  call.qk_norm = value_of<recurrence::QkNorm>(qk_norms, options.qk_norm);
  call.gate = value_of<GateActivation>(gates, options.gate);
  if (options.gate_lower_bound) call.gate_lower_bound = *options.gate_lower_bound;
  call.beta = value_of<BetaActivation>(betas, options.beta);
  call.write_gate = value_of<recurrence::WriteGate>(write_gates, options.write_gate);
  return call;
}

template <class Inputs, class T>
void load_shared(Runtime& runtime, const OpInput& file, const recurrence::Options& options, Inputs& x) {
  using Need = OpInput::Need;
  using A = Accumulate<T>;
  x.q = file.load<T>(runtime, "q");
  x.k = file.load<T>(runtime, "k");
  x.v = file.load<T>(runtime, "v");
  if (options.gate == GateActivation::log_decay) {
    x.g = file.load<A>(runtime, "g");
  } else {
    x.raw_gate = file.load<T>(runtime, "raw_gate");
    const bool may_lack = options.gate == GateActivation::lower_bounded;
    x.A_log = file.load<A>(runtime, "A_log", may_lack ? Need::optional : Need::required);
    x.dt_bias = file.load<A>(runtime, "dt_bias", Need::optional);
  }
  x.initial_state = file.load<A>(runtime, "initial_state", Need::optional);
  DELTAPORT_VALIDATE(x.q.rank() == 4, OpError, "q has shape ", x.q.shape().str(), ", expected [B, T, H, K]");
  x.cu_seqlens = file.load_boundaries(runtime, x.q.extent(1));
}

template <class T>
struct Incoming {
  Tensor<T> d_o;
  Tensor<Accumulate<T>> d_final_state;
};

/// The gradients under their names in the file, so that a wrong shape is reported by that name.
template <class T, class Result>
Incoming<T> load_gradients(Runtime& runtime, const OpInput& file, const Result& forward) {
  const Incoming<T> in{file.load<T>(runtime, "do"),
                       file.load<Accumulate<T>>(runtime, "dht", OpInput::Need::optional)};
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
  out.add("d_raw_gate", gradients.d_raw_gate);
  out.add("dA_log", gradients.dA_log);
  out.add("ddt_bias", gradients.ddt_bias);
}

template <class T>
void run_gdn(Runtime& runtime, const OpInput& file, const recurrence::Options& options, OpOutput& out) {
  GdnInputs<T> x;
  load_shared<GdnInputs<T>, T>(runtime, file, options, x);
  if (options.beta == BetaActivation::plain)
    x.beta = file.load<Accumulate<T>>(runtime, "beta");
  else
    x.raw_beta = file.load<T>(runtime, "raw_beta");
  const auto result = recurrence::gdn_forward<T>(runtime, x, options);
  out.add("o", result.o);
  out.add("final_state", result.final_state);
  if (!options.save_for_backward) return;
  const auto in = load_gradients<T>(runtime, file, result);
  const auto gradients = recurrence::gdn_backward<T>(runtime, result.saved, in.d_o, in.d_final_state);
  add_shared(out, gradients);
  out.add("dbeta", gradients.dbeta);
  out.add("d_raw_beta", gradients.d_raw_beta);
}

template <class T>
void run_gdn2(Runtime& runtime, const OpInput& file, const recurrence::Options& options, OpOutput& out) {
  Gdn2Inputs<T> x;
  load_shared<Gdn2Inputs<T>, T>(runtime, file, options, x);
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
  const recurrence::Options call = call_options(options);
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
  DELTAPORT_VALIDATE(!options.gate_lower_bound || options.gate == "lower-bounded", OpError,
                     "--gate-lower-bound needs --gate lower-bounded");
  std::error_code missing;
  DELTAPORT_VALIDATE(!std::filesystem::equivalent(options.in, options.out, missing), OpError, "--out ",
                     options.out, " is the file of --in; give another");
  const OpInput file(options.in, known_tensors(options));
  const Dtype dtype = dtype_of_call(options, file);
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  switch (dtype) {
    case Dtype::f64:
      run_op_as<double>(runtime, file, options);
      break;
    case Dtype::bf16:
      run_op_as<bfloat16>(runtime, file, options);
      break;
    case Dtype::f16:
      run_op_as<float16>(runtime, file, options);
      break;
    default:
      run_op_as<float>(runtime, file, options);
  }
  return 0;
}

constexpr const char* gdn_shapes =
    "Tensors in (row-major; B batch, T tokens, H key heads, HV = G H value heads, K, V head sizes, N "
    "sequences):\n"
    "  q, k           [B, T, H, K]\n"
    "  v              [B, T, HV, V]\n"
    "  g              [B, T, HV]      log decay, <= 0; or, with --gate, raw_gate [B, T, HV], A_log [HV], "
    "dt_bias\n"
    "                                 [HV] (A_log optional with lower-bounded, dt_bias always)\n"
    "  beta           [B, T, HV]      or, with --beta, raw_beta [B, T, HV]\n"
    "  initial_state  [N, HV, K, V]   optional\n"
    "  cu_seqlens     [N + 1]         optional, I32 or I64, B = 1; else N = B\n"
    "  do             [B, T, HV, V]   with --backward\n"
    "  dht            [N, HV, K, V]   optional, with --backward\n"
    "Tensors out: o, final_state; with --backward dq dk dv, dg or d_raw_gate dA_log ddt_bias, dbeta or "
    "d_raw_beta,\n"
    "and dinitial_state where there was an initial_state. softplus: g = -exp(A_log) softplus(raw_gate + "
    "dt_bias);\n"
    "lower-bounded: g = bound sigmoid(exp(A_log) (raw_gate + dt_bias)).\n"
    "S <- exp(g) S; e = beta (v - S^T k); S <- S + k e^T; o = scale S^T q.";
constexpr const char* gdn2_shapes =
    "Tensors in (row-major; B batch, T tokens, H key heads, HV = G H value heads, K, V head sizes, N "
    "sequences):\n"
    "  q, k           [B, T, H, K]\n"
    "  v              [B, T, HV, V]\n"
    "  g              [B, T, HV or H, K]  log decay, <= 0; or, with --gate, raw_gate like g, A_log [its "
    "heads],\n"
    "                                     dt_bias [its heads, K] (A_log optional with lower-bounded, dt_bias "
    "always)\n"
    "  b              as g                erase gate; before the sigmoid with --beta\n"
    "  w              [B, T, HV, V]       write gate; before the sigmoid with --write-gate\n"
    "  initial_state  [N, HV, K, V]       optional\n"
    "  cu_seqlens     [N + 1]             optional, I32 or I64, B = 1; else N = B\n"
    "  do             [B, T, HV, V]       with --backward\n"
    "  dht            [N, HV, K, V]       optional, with --backward\n"
    "Tensors out: o, final_state; with --backward dq dk dv, dg or d_raw_gate dA_log ddt_bias, db dw, and\n"
    "dinitial_state where there was an initial_state. softplus: g = -exp(A_log) softplus(raw_gate + "
    "dt_bias);\n"
    "lower-bounded: g = bound sigmoid(exp(A_log) (raw_gate + dt_bias)).\n"
    "S <- Diag(exp(g)) S; r = w v - S^T (b k); S <- S + k r^T; o = scale S^T q.";

void add_rule(CLI::App& op, Rule rule, Action& action) {
  const bool gdn = rule == Rule::gdn;
  auto* command = op.add_subcommand(gdn ? "gdn" : "gdn2", gdn ? "Gated DeltaNet" : "Gated DeltaNet 2");
  auto options = std::make_shared<OpOptions>();
  options->rule = rule;
  command->add_option("--in", options->in, "safetensors file with the inputs (F64, F32, BF16 or F16)")
      ->required();
  command->add_option("--out", options->out, "safetensors file to write")->required();
  const auto choice = [&](const char* name, std::string& word, const std::vector<std::string>& words,
                          const char* what) {
    command->add_option(name, word, what)->check(CLI::IsMember(words))->capture_default_str();
  };
  choice("--impl", options->implementation, implementations, "Implementation");
  choice("--qk-norm", options->qk_norm, qk_norms, "Norm of q and k inside");
  choice("--gate", options->gate, gates, "How g comes in");
  command->add_option("--gate-lower-bound", options->gate_lower_bound,
                      "Bound of the lower-bounded gate, in [-5, 0) (default: -5)");
  choice("--beta", options->beta, betas, gdn ? "How beta comes in" : "How the erase gate b comes in");
  if (!gdn) choice("--write-gate", options->write_gate, write_gates, "How the write gate w comes in");
  const std::map<std::string, std::string> dtypes{
      {"f64", "float64"}, {"f32", "float32"}, {"bf16", "bfloat16"}, {"f16", "float16"}};
  command->add_option("--dtype", options->dtype, "Type of q, k, v and o (default: that of q in the file)")
      ->transform(CLI::Transformer(dtypes))
      ->check(CLI::IsMember({"float64", "float32", "bfloat16", "float16"}));
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
