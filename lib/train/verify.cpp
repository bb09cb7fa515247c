// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/verify.hpp"

#include <bit>
#include <cinttypes>

#include "deltaport/config/names.hpp"
#include "deltaport/train/run_offload.hpp"
#include "deltaport/train/training_run.hpp"
#include "train/first_difference.hpp"
#include "train/number_format.hpp"

namespace deltaport {
namespace {

using train::formatted;

/// A training run with memory and stream of its own.
template <class T>
struct Side {
  Side(const Communicator& communicator, const RunConfig& config) : run(communicator, runtime, config) {}
  Runtime runtime;
  TrainingRun<T> run;
};

/// The parameter that owns an element of the flat buffers.
template <class T>
std::string place_of(const ParameterSet<T>& parameters, std::int64_t element) {
  for (const ParameterInfo& info : parameters.infos())
    if (element >= info.offset && element < info.offset + info.shape.size())
      return concat("'", info.name, "' ", info.shape.str(), ", element ", element - info.offset);
  return concat("padding, element ", element);
}

std::string both(double reference, double other) {
  return formatted("%.17g", reference) + " and " + formatted("%.17g", other);
}

template <class T>
class Comparison {
 public:
  Comparison(const std::string& arm, std::int64_t step, Side<T>& reference, Side<T>& other)
      : arm_(arm), step_(step), reference_(reference), other_(other) {}

  void scalars(const StepResult& a, const StepResult& b) const {
    if (a.input_hash != b.input_hash)
      differs("the inputs", concat("hashes ", hex(a.input_hash), " and ", hex(b.input_hash)));
    scalar("the learning rate", a.lr, b.lr);
    scalar("the loss", a.loss, b.loss);
  }
  // Before the norm, which says that an element differs, but not which.
  void gradients(const StepResult& a, const StepResult& b) const {
    tensor("gradient of", parameters(reference_).flat_gradients(), parameters(other_).flat_gradients());
    scalar("the gradient norm", a.grad_norm, b.grad_norm);
  }
  void weights() const {
    tensor("weight", parameters(reference_).flat_values(), parameters(other_).flat_values());
  }
  void optimizer() const {
    const auto &a = reference_.run.optimizer(), &b = other_.run.optimizer();
    tensor("optimizer exp_avg of", a.exp_avg(), b.exp_avg());
    tensor("optimizer exp_avg_sq of", a.exp_avg_sq(), b.exp_avg_sq());
    tensor("optimizer master of", a.masters(), b.masters());
    scalar("the number of updates", static_cast<double>(a.updates(reference_.runtime)),
           static_cast<double>(b.updates(other_.runtime)));
  }

 private:
  static std::string hex(std::uint64_t value) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016" PRIx64, value);
    return digits;
  }

  static const ParameterSet<T>& parameters(Side<T>& side) { return side.run.model().parameters(); }
  [[noreturn]] void differs(const std::string& what, const std::string& values) const {
    throw VerifyError(
        concat("arm '", arm_, "', step ", step_, ": ", what, " differs from the eager run: ", values));
  }
  void scalar(const char* what, double a, double b) const {
    if (std::bit_cast<std::uint64_t>(a) != std::bit_cast<std::uint64_t>(b)) differs(what, both(a, b));
  }
  template <class U>
  void tensor(const char* what, const Tensor<U>& a, const Tensor<U>& b) const {
    // Each side has a stream of its own.
    reference_.runtime.fence("deltaport: verify");
    other_.runtime.fence("deltaport: verify");
    const ExecutionSpace& exec = reference_.runtime.compute();
    const std::int64_t at = train::first_difference(exec, a, b);
    if (at < 0) return;
    const auto value = [&](const Tensor<U>& of) {
      return static_cast<double>(static_cast<Accumulate<U>>(to_vector(exec, of.rows(at, at + 1))[0]));
    };
    differs(concat(what, " ", place_of(parameters(reference_), at)), both(value(a), value(b)));
  }

  const std::string& arm_;
  std::int64_t step_;
  Side<T>& reference_;
  Side<T>& other_;
};

/// Prints a row column by column, so that the one with the difference shows where it stopped. Returns what the
/// reference gave.
template <class T>
StepResult compare_step(const Communicator& communicator, const VerifyArm& arm, std::int64_t step,
                        Side<T>& reference, Side<T>& other,
                        const std::function<void(const std::string&)>& print) {
  const StepResult a = reference.run.step(step - 1), b = other.run.step(step - 1);
  const Comparison<T> comparison(arm.name, step, reference, other);
  char start[160];
  std::snprintf(start, sizeof start, "%-23.60s %4lld  %016" PRIx64 "  %-14s  %-12s", arm.name.c_str(),
                static_cast<long long>(step), a.input_hash, formatted("%.10g", a.loss).c_str(),
                formatted("%.6g", a.grad_norm).c_str());
  std::string row = start;
  try {
    communicator.agree([&] { comparison.scalars(a, b); });
    row += "  same";
    communicator.agree([&] { comparison.gradients(a, b); });
    row += "       same";
    communicator.agree([&] { comparison.weights(); });
    row += "     same";
    communicator.agree([&] { comparison.optimizer(); });
    print(row + "     same");
  } catch (const Error&) {
    print(row + "  DIFFERS");
    throw;
  }
  return a;
}

void check_captured(const VerifyArm& arm, AnyTrainingRun& run,
                    const std::function<void(const std::string&)>& print) {
  const graph::GraphSegments* graphs = run.graphs();
  const graph::Stats stats = graphs != nullptr ? graphs->stats() : graph::Stats{};
  DELTAPORT_VALIDATE(
      !arm.must_capture || stats.launches > 0, VerifyError, "arm '", arm.name,
      "' captured no graph, so it shows nothing",
      graphs != nullptr ? ": see the warnings of `deltaport train` with the same options" : "");
  if (stats.launches == 0) return;
  print(concat("  ", arm.name, ": ", train::with_thousands(stats.segments), " graphs, ",
               train::with_thousands(stats.operations), " operations, ",
               train::with_thousands(static_cast<std::int64_t>(stats.bytes)), " bytes held, launched ",
               train::with_thousands(stats.launches), " times, captured in ",
               train::step_time(stats.capture_seconds)));
}

/// `last` is the last step alone: in the first, groups move of which nobody knows yet that they are to stay.
void check_moved(const VerifyArm& arm, const OffloadMetrics& last,
                 const std::function<void(const std::string&)>& print) {
  DELTAPORT_VALIDATE(last.least_rank_bytes > 0, VerifyError, "arm '", arm.name,
                     "' moved nothing to the host and back in its last step",
                     last.to_host_bytes > 0 ? " on some rank" : "",
                     ", so it shows nothing: are the saved tensors smaller than offload.min_tensor_elements, "
                     "their groups no "
                     "more than stay (offload.slots, offload.keep_last), or offload.fraction too small?");
  print(concat("  ", arm.name, ": ", train::with_thousands(last.to_host_bytes), " bytes to the host, ",
               train::with_thousands(last.to_device_bytes), " back, in the last step"));
}

/// Steps of the reference whose loss or gradient norm was not finite.
struct NotFinite {
  std::int64_t first = 0, count = 0;
  double loss = 0.0, grad_norm = 0.0;  // of the first

  void note(std::int64_t step, const StepResult& result) {
    if (result.finite || step <= last_) return;
    if (count == 0) first = step, loss = result.loss, grad_norm = result.grad_norm;
    ++count;
    last_ = step;
  }

 private:
  std::int64_t last_ = 0;  // each arm trains the reference again
};

template <class T>
void verify_arm(const Communicator& communicator, const RunConfig& reference, const VerifyArm& arm,
                std::int64_t steps, NotFinite& not_finite,
                const std::function<void(const std::string&)>& print) {
  Side<T> eager(communicator, reference), other(communicator, arm.config);
  OffloadMetrics moved;
  for (std::int64_t step = 1; step <= steps; ++step) {
    not_finite.note(step, compare_step(communicator, arm, step, eager, other, print));
    if (other.run.offload() != nullptr) moved = other.run.offload()->take_metrics(step, 1.0);
  }
  communicator.agree([&] { check_captured(arm, other.run, print); });
  if (arm.must_move) check_moved(arm, moved, print);
}

/// Throws ConfigError for an arm that could not show anything.
void check_arm(const RunConfig& reference, const VerifyArm& arm, std::int64_t steps) {
  DELTAPORT_VALIDATE(!arm.must_capture || arm.config.graph.warmup_steps < steps, ConfigError,
                     "verify: --steps ", steps, " leaves arm '", arm.name,
                     "' nothing to capture after graph.warmup_steps = ", arm.config.graph.warmup_steps);
  DELTAPORT_VALIDATE(!arm.must_move || steps > 1, ConfigError, "verify: --steps ", steps, " leaves arm '",
                     arm.name, "' no step after the first, which learns what moves");
  const Dtype own = model_dtype(arm.config), type = model_dtype(reference);
  DELTAPORT_VALIDATE(own == type, ConfigError, "verify: arm '", arm.name, "' is in ", name_of(own),
                     " and the eager run in ", name_of(type),
                     ", which have no bits in common; train.precision is the same in all arms: give "
                     "--train.precision=",
                     name_of(arm.config.train.precision), " to verify the run in it");
}

}  // namespace

void verify(const Communicator& communicator, const RunConfig& reference, const std::vector<VerifyArm>& arms,
            std::int64_t steps, const std::function<void(const std::string& line)>& print) {
  DELTAPORT_VALIDATE(steps >= 1, ConfigError, "verify needs --steps >= 1, got ", steps);
  for (const VerifyArm& arm : arms) check_arm(reference, arm, steps);
  const auto print_once = [&](const std::string& line) {
    if (communicator.is_root()) print(line);
  };
  print_once(
      "arm                     step  inputs            loss            grad norm     scalars  gradients  "
      "weights  "
      "optimizer");
  NotFinite not_finite;
  for (const VerifyArm& arm : arms) {
    if (model_dtype(reference) == Dtype::bf16)
      verify_arm<bfloat16>(communicator, reference, arm, steps, not_finite, print_once);
    else
      verify_arm<float>(communicator, reference, arm, steps, not_finite, print_once);
  }
  if (not_finite.count > 0)
    print_once(concat("  the run is not finite in ", not_finite.count, " of ", steps,
                      " steps, first in step ", not_finite.first, " (loss ",
                      formatted("%.10g", not_finite.loss), ", gradient norm ",
                      formatted("%.6g", not_finite.grad_norm),
                      "): such steps change no weight, and equal bits in them show little"));
}

}  // namespace deltaport
