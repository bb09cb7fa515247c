// SPDX-License-Identifier: Apache-2.0
// Times the recurrences beside the machine's ceiling, and checks what was timed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <sstream>

#include "bench_problem.hpp"
#include "bench_rows.hpp"
#include "bench_timer.hpp"
#include "command.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/recurrence/ceiling.hpp"
#ifdef KOKKOS_ENABLE_CUDA
#include "bench_event_timer.hpp"
#endif

namespace deltaport::app {
namespace {

using recurrence::Implementation;
using recurrence::Keep;

struct BenchRecurrenceOptions {
  std::string kind = "all", dtype, clock = runs_on_host ? "wall" : "events", json, qk_norm,
              gates = "log-sigmoid";
  std::vector<std::string> implementations{"auto"}, shapes;
  std::vector<std::string> keeps =
      runs_on_host ? std::vector<std::string>{"inputs"} : std::vector<std::string>{"inputs", "preparation"};
  int repeat = runs_on_host ? 11 : 50;
};

CallShape parse_shape(const std::string& text) {
  std::vector<int> numbers;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    char* end = nullptr;
    const long value = std::strtol(part.c_str(), &end, 10);
    DELTAPORT_VALIDATE(!part.empty() && *end == '\0' && value > 0 && value < (1L << 31), ConfigError,
                       "--shape ", text, ": \"", part,
                       "\" is not a positive number; expected B,T,H,HV or B,T,H,HV,K,V");
    numbers.push_back(static_cast<int>(value));
  }
  DELTAPORT_VALIDATE(numbers.size() == 4 || numbers.size() == 6, ConfigError, "--shape ", text, " has ",
                     numbers.size(), " numbers; expected B,T,H,HV or B,T,H,HV,K,V");
  if (numbers.size() == 4) numbers.insert(numbers.end(), {128, 128});
  DELTAPORT_VALIDATE(numbers[3] % numbers[2] == 0, ConfigError, "--shape ", text, ": HV = ", numbers[3],
                     " is not a multiple of H = ", numbers[2]);
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]};
}

std::vector<CallShape> shapes_of(const BenchRecurrenceOptions& options) {
  std::vector<CallShape> shapes;
  for (const std::string& text : options.shapes) shapes.push_back(parse_shape(text));
  if (!shapes.empty()) return shapes;
  return {{1, 2048, 16, 16, 128, 128}, {2, 512, 4, 4, 64, 64}};
}

std::vector<BenchCase> cases_of(const BenchRecurrenceOptions& options) {
  std::vector<BenchCase> cases, asked;
  if (options.shapes.empty() && !runs_on_host) {
    cases = published_cases();
  } else {
    for (const CallShape& shape : shapes_of(options))
      for (Kind kind : {Kind::gdn, Kind::gdn2}) cases.push_back({kind, shape});
  }
  for (const BenchCase& each : cases)
    if (options.kind == "all" || options.kind == name_of(each.kind)) asked.push_back(each);
  return asked;
}

Implementation implementation_of(const std::string& name) {
  std::string names;
  for (auto each : {Implementation::automatic, Implementation::reference, Implementation::portable,
                    Implementation::host, Implementation::cuda}) {
    if (recurrence::name_of(each) == name) return each;
    names += (names.empty() ? "" : ", ") + std::string(recurrence::name_of(each));
  }
  throw ConfigError("--impl " + name + " is unknown; expected some of " + names);
}

/// Times every implementation in turn, round by round with the ceiling between them, so that what disturbs the
/// machine disturbs all of them.
template <class T>
class Session {
 public:
  Session(Runtime& runtime, Timer& timer, const BenchRecurrenceOptions& options)
      : runtime_(runtime), timer_(timer), options_(options) {}

  void run(Kind kind, const CallShape& shape, std::vector<BenchRow>& table) {
    Fields fields = random_fields(kind, shape, options_.gates == "mild" ? Gates::mild : Gates::log_sigmoid);
    round_to<T>(fields);
    std::vector<BenchRow> rows;
    for (const std::string& name : options_.implementations)
      for (const std::string& keep : options_.keeps)
        for (Direction direction : {Direction::forward, Direction::backward})
          rows.push_back({kind,
                          direction,
                          shape,
                          std::string(name_of(dtype_of<T>)),
                          name,
                          keep == "inputs" ? Keep::inputs : Keep::preparation,
                          {},
                          {}});
    Bench<T> bench(runtime_, kind, shape, fields);
    for (BenchRow& row : rows) {  // warms up and shows at once what cannot be done
      bench.forward(call_options(row));
      row.implementation = recurrence::name_of(bench.implementation());             // what auto took
      if (bench.implementation() != Implementation::cuda) row.keep = Keep::inputs;  // what the others do
      if (row.direction == Direction::backward) bench.backward();
    }
    drop_repeated(rows);
    for (int r = 0; r < options_.repeat; ++r)
      for (BenchRow& row : rows) time(bench, row);
    const auto expected = reference(kind, shape, fields);
    for (BenchRow& row : rows) {
      check(bench, row, expected);
      print(row);
    }
    table.insert(table.end(), rows.begin(), rows.end());
  }

 private:
  static void drop_repeated(std::vector<BenchRow>& rows) {
    for (auto row = rows.begin(); row != rows.end();) {
      const bool repeats = std::any_of(rows.begin(), row, [&](const BenchRow& before) {
        return before.implementation == row->implementation && before.keep == row->keep &&
               before.direction == row->direction;
      });
      row = repeats ? rows.erase(row) : row + 1;
    }
  }
  recurrence::Options call_options(const BenchRow& row) const {
    recurrence::Options options = call_options(row.implementation);
    options.keep = row.keep;
    return options;
  }
  recurrence::Options call_options(const std::string& implementation) const {
    recurrence::Options options;
    options.implementation = implementation_of(implementation);
    const bool normalise = options_.qk_norm.empty() ? !runs_on_host : options_.qk_norm == "l2";
    options.qk_norm = normalise ? recurrence::QkNorm::l2 : recurrence::QkNorm::none;
    return options;
  }

  void time(Bench<T>& bench, BenchRow& row) {
    if (row.direction == Direction::forward) {
      bench.poison_forward();
    } else {
      bench.forward(call_options(row));
      bench.poison_backward();
    }
    const double ceiling = ceiling_flops();
    const double seconds = timer_.seconds(runtime_, [&] {
      row.direction == Direction::forward ? bench.forward(call_options(row)) : bench.backward();
    });
    const double element = static_cast<double>(sizeof(T));
    const double flops = nominal_flops(row.direction, row.shape);
    row.seconds.push_back(seconds);
    if (runs_on_host) {
      row.shares.push_back(flops / seconds / ceiling);
    } else {
      row.least_bytes = least_bytes(row.kind, row.direction, row.shape, element);
      row.floor_seconds =
          std::max(row.least_bytes / device_ceiling.bytes_per_second, flops / device_ceiling.flops);
      row.shares.push_back(row.floor_seconds / seconds);
    }
  }

  double ceiling_flops() {
    if (!runs_on_host) return 0;
    double operations = 0;
    const double seconds =
        timer_.seconds(runtime_, [&] { operations = recurrence::run_multiply_adds(runtime_, 0.01); });
    return operations / seconds;
  }

  struct Expected {
    Fields outputs, gradients;
  };
  Expected reference(Kind kind, const CallShape& shape, const Fields& fields) {
    Bench<double> bench(runtime_, kind, last_group(shape), last_group(shape, fields));
    recurrence::Options options = call_options("reference");
    options.scale = 1.0 / std::sqrt(static_cast<double>(shape.key_dim));
    bench.forward(options);
    bench.backward();
    return {bench.outputs(), bench.gradients()};
  }

  /// One more call, on poisoned memory as the timed ones.
  void check(Bench<T>& bench, BenchRow& row, const Expected& expected) {
    bench.poison_forward();
    bench.poison_backward();
    bench.forward(call_options(row));
    const bool forward = row.direction == Direction::forward;
    if (!forward) bench.backward();
    const Fields found = forward ? bench.outputs() : bench.gradients();
    for (const auto& [name, field] : forward ? expected.outputs : expected.gradients) {
      const double error = relative_error(found.at(name).values, field.values);
      row.largest_error = std::max(row.largest_error, error);
      row.is_right = row.is_right && error <= tolerance(name);
    }
  }
  static double tolerance(const std::string& name) {
    if (is_half<T>) return name == "o" ? 4e-3 : name == "dq" || name == "dk" || name == "dv" ? 8e-3 : 2e-2;
    return name == "o" ? 2e-6 : 1e-5;
  }

  Runtime& runtime_;
  Timer& timer_;
  const BenchRecurrenceOptions& options_;
};

template <class T>
void run_all(Runtime& runtime, Timer& timer, const BenchRecurrenceOptions& options,
             std::vector<BenchRow>& rows) {
  Session<T> session(runtime, timer, options);
  for (const BenchCase& each : cases_of(options)) session.run(each.kind, each.shape, rows);
}

std::unique_ptr<Timer> timer_of(const BenchRecurrenceOptions& options, Runtime& runtime) {
#ifdef KOKKOS_ENABLE_CUDA
  if (options.clock == "events") return std::make_unique<EventTimer>(runtime);
#endif
  (void)runtime;
  if (options.clock == "cpu") return std::make_unique<ProcessorTimer>();
  return std::make_unique<WallTimer>();
}

int bench_recurrence(const BenchRecurrenceOptions& options) {
  for (const std::string& name : options.implementations) implementation_of(name);
  shapes_of(options);
  JsonFile json(options.json);
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  const std::unique_ptr<Timer> timer = timer_of(options, runtime);
  const std::string dtype = !options.dtype.empty() ? options.dtype : runs_on_host ? "float32" : "bfloat16";
  std::vector<BenchRow> rows;
  std::printf("gates: %s\n", options.gates.c_str());
  print_header();
  if (dtype == "float32") run_all<float>(runtime, *timer, options, rows);
  if (dtype == "bfloat16") run_all<bfloat16>(runtime, *timer, options, rows);
  if (dtype == "float16") run_all<float16>(runtime, *timer, options, rows);
  if (json.wanted()) write_json(json, rows, options.clock, options.gates);
  for (const BenchRow& row : rows)
    if (!row.is_right) {
      std::fprintf(stderr, "deltaport: error: %s %s of %s differs from reference\n", name_of(row.kind),
                   name_of(row.direction), row.implementation.c_str());
      return static_cast<int>(ExitCode::failure);
    }
  return 0;
}

}  // namespace

void add_bench_recurrence(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand(
      "recurrence",
      "time the recurrences beside the machine's ceiling, and check the results against reference");
  auto options = std::make_shared<BenchRecurrenceOptions>();
  command
      ->add_option("--impl", options->implementations,
                   "Implementations, separated by commas: auto, reference, portable, host, cuda")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--kind", options->kind, "Rule")
      ->check(CLI::IsMember({"gdn", "gdn2", "all"}))
      ->capture_default_str();
  command->add_option("--shape", options->shapes, "B,T,H,HV or B,T,H,HV,K,V (K = V = 128); may be repeated")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--dtype", options->dtype,
                   "Type of q, k, v and o (default: float32 on hosts, bfloat16 on devices)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  command
      ->add_option(
          "--gates", options->gates,
          "Log decays: log-sigmoid of a normal number, 0.8 in the mean, or mild, uniform in [-0.1, 0]")
      ->check(CLI::IsMember({"log-sigmoid", "mild"}))
      ->capture_default_str();
  command
      ->add_option("--qk-norm", options->qk_norm,
                   "Normalise q and k inside (default: none on hosts, l2 on devices)")
      ->check(CLI::IsMember({"none", "l2"}));
  command->add_option("--repeat", options->repeat, "Timed calls of each")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--clock", options->clock,
                   runs_on_host ? "wall, or cpu: processor time over threads, for busy hosts"
                                : "events: of the compute stream, with a cold cache; or wall")
      ->check(CLI::IsMember(runs_on_host ? std::vector<std::string>{"wall", "cpu"}
                                         : std::vector<std::string>{"events", "wall"}))
      ->capture_default_str();
  command
      ->add_option("--keep", options->keeps,
                   "What forward keeps for backward, separated by commas: inputs, preparation (of cuda)")
      ->delimiter(',')
      ->check(CLI::IsMember({"inputs", "preparation"}))
      ->capture_default_str();
  command->add_option("--json", options->json, "Also write the figures to this file");
  command->footer(
      "GFLOP/s counts the chunked form's multiply-adds (5.46e9 forward, 21.2e9 backward at 1x2048 16/16 "
      "128x128).\nExit code 1 when a result differs from reference.");
  command->callback([options, &action] { action = [options] { return bench_recurrence(*options); }; });
}

}  // namespace deltaport::app
