// SPDX-License-Identifier: Apache-2.0
// Times the recurrences beside the machine's ceiling, and checks what was timed.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench_problem.hpp"
#include "bench_timer.hpp"
#include "command.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/recurrence/ceiling.hpp"

namespace deltaport::app {
namespace {

using recurrence::Implementation;

struct BenchRecurrenceOptions {
  std::string kind = "all", dtype, clock = "wall", json, qk_norm;
  std::vector<std::string> implementations{"auto"}, shapes;
  int repeat = 11;
};

enum class Direction { forward, backward };

/// One line of the table.
struct Row {
  Kind kind;
  Direction direction;
  CallShape shape;
  std::string dtype, implementation;
  std::vector<double> seconds, shares;  // one per repetition; the share is of the ceiling beside it
  double largest_error = 0;
  bool is_right = true;
  double floor_seconds = 0;  // devices
};

/// What a device cannot beat: by its memory, and by its matrix units.
struct DeviceCeiling {
  const char* name;
  double bytes_per_second, flops;
};
constexpr DeviceCeiling device_ceiling{"H200", 4.16e12, 790e12};

/// Multiply-adds of the chunked (WY) form with chunks of 64, as two each, without what an implementation may save
/// by triangles: 5.46e9 at T = 2048, 16 heads of 128. The backward count holds a second forward. The same
/// counts serve both rules.
double nominal_flops(Direction direction, const CallShape& s) {
  constexpr double c = 64;
  const double k = s.key_dim, v = s.value_dim;
  const double forward = 6 * k * v + 4 * c * (k + v) + 2 * c * c / 3;
  const double heads = static_cast<double>(s.batch * s.tokens) * s.value_heads;
  return heads * forward * (direction == Direction::forward ? 1.0 : 21.2 / 5.46);
}

/// Bytes that a call cannot avoid to read or write.
double least_bytes(Kind kind, Direction direction, const CallShape& s, double element) {
  const double rows = static_cast<double>(s.batch * s.tokens), hv = s.value_heads;
  double in = element * (2.0 * s.key_heads * s.key_dim + hv * s.value_dim);
  in += kind == Kind::gdn ? 8 * hv : hv * ((4 + element) * s.key_dim + element * s.value_dim);
  const double o = element * hv * s.value_dim;
  return rows * (direction == Direction::forward ? in + o : 2 * in + o);
}

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
  if (runs_on_host) return {{1, 2048, 16, 16, 128, 128}, {2, 512, 4, 4, 64, 64}};
  return {{1, 32768, 16, 16, 128, 128},
          {1, 32768, 16, 32, 128, 128},
          {4, 2048, 16, 16, 128, 128},
          {1, 2048, 16, 16, 128, 128}};
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

  void run(Kind kind, const CallShape& shape, std::vector<Row>& table) {
    Fields fields = random_fields(kind, shape);
    round_to<T>(fields);
    std::vector<Row> rows;
    for (const std::string& name : options_.implementations)
      for (Direction direction : {Direction::forward, Direction::backward})
        rows.push_back({kind, direction, shape, std::string(name_of(dtype_of<T>)), name, {}, {}});
    Bench<T> bench(runtime_, kind, shape, fields);
    for (Row& row : rows) {  // warms up and shows at once what cannot be done
      bench.forward(call_options(row.implementation));
      if (row.direction == Direction::backward) bench.backward();
    }
    for (int r = 0; r < options_.repeat; ++r)
      for (Row& row : rows) time(bench, row);
    const auto expected = reference(kind, shape, fields);
    for (Row& row : rows) check(bench, row, expected);
    table.insert(table.end(), rows.begin(), rows.end());
  }

 private:
  recurrence::Options call_options(const std::string& implementation) const {
    recurrence::Options options;
    options.implementation = implementation_of(implementation);
    const bool normalise = options_.qk_norm.empty() ? !runs_on_host : options_.qk_norm == "l2";
    options.qk_norm = normalise ? recurrence::QkNorm::l2 : recurrence::QkNorm::none;
    return options;
  }

  void time(Bench<T>& bench, Row& row) {
    if (row.direction == Direction::forward) {
      bench.poison_forward();
    } else {
      bench.forward(call_options(row.implementation));
      bench.poison_backward();
    }
    const double ceiling = ceiling_flops();
    const double seconds = timer_.seconds(runtime_, [&] {
      row.direction == Direction::forward ? bench.forward(call_options(row.implementation))
                                          : bench.backward();
    });
    const double element = static_cast<double>(sizeof(T));
    const double flops = nominal_flops(row.direction, row.shape);
    row.seconds.push_back(seconds);
    if (runs_on_host) {
      row.shares.push_back(flops / seconds / ceiling);
    } else {
      row.floor_seconds =
          std::max(least_bytes(row.kind, row.direction, row.shape, element) / device_ceiling.bytes_per_second,
                   flops / device_ceiling.flops);
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
  void check(Bench<T>& bench, Row& row, const Expected& expected) {
    bench.poison_forward();
    bench.poison_backward();
    bench.forward(call_options(row.implementation));
    const bool forward = row.direction == Direction::forward;
    if (!forward) bench.backward();
    const Fields found = last_group(row.shape, forward ? bench.outputs() : bench.gradients());
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

const char* name_of(Kind kind) {
  return kind == Kind::gdn ? "gdn" : "gdn2";
}
const char* name_of(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}

std::string shape_text(const CallShape& s) {
  std::ostringstream out;
  out << s.batch << 'x' << s.tokens << ' ' << s.key_heads << '/' << s.value_heads << ' ' << s.key_dim << 'x'
      << s.value_dim;
  return out.str();
}

void print(const std::vector<Row>& rows) {
  std::printf("%-5s %-9s %-22s %-9s %-10s %10s %10s %9s %7s %9s\n", "kind", "direction", "BxT H/HV KxV",
              "dtype", "impl", "median ms", "best ms", "GFLOP/s", runs_on_host ? "of FMA" : "of floor",
              "error");
  for (const Row& row : rows) {
    const double middle = median(row.seconds);
    std::printf("%-5s %-9s %-22s %-9s %-10s %10.3f %10.3f %9.1f %6.1f%% %9.1e%s\n", name_of(row.kind),
                name_of(row.direction), shape_text(row.shape).c_str(), row.dtype.c_str(),
                row.implementation.c_str(), 1e3 * middle, 1e3 * least(row.seconds),
                1e-9 * nominal_flops(row.direction, row.shape) / middle, 100 * median(row.shares),
                row.largest_error, row.is_right ? "" : "  WRONG");
  }
}

void write_json(const std::string& path, const std::vector<Row>& rows,
                const BenchRecurrenceOptions& options) {
  nlohmann::ordered_json json;
  json["threads"] = ExecutionSpace().concurrency();
  json["execution_space"] = ExecutionSpace::name();
  json["clock"] = options.clock;
  json["share_of"] = runs_on_host ? "multiply-adds measured beside each call" : device_ceiling.name;
  json["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const CallShape& s = row.shape;
    json["rows"].push_back(
        {{"kind", name_of(row.kind)},
         {"direction", name_of(row.direction)},
         {"shape", {s.batch, s.tokens, s.key_heads, s.value_heads, s.key_dim, s.value_dim}},
         {"dtype", row.dtype},
         {"impl", row.implementation},
         {"median_seconds", median(row.seconds)},
         {"best_seconds", least(row.seconds)},
         {"nominal_flops", nominal_flops(row.direction, s)},
         {"share", median(row.shares)},
         {"floor_seconds", row.floor_seconds},
         {"seconds", row.seconds},
         {"error", std::isfinite(row.largest_error) ? nlohmann::ordered_json(row.largest_error)
                                                    : nlohmann::ordered_json(nullptr)},
         {"right", row.is_right}});
  }
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  DELTAPORT_VALIDATE(file.good(), Error, "cannot write ", path);
}

template <class T>
void run_all(Runtime& runtime, Timer& timer, const BenchRecurrenceOptions& options, std::vector<Row>& rows) {
  Session<T> session(runtime, timer, options);
  for (const CallShape& shape : shapes_of(options))
    for (Kind kind : {Kind::gdn, Kind::gdn2})
      if (options.kind == "all" || options.kind == name_of(kind)) session.run(kind, shape, rows);
}

int bench_recurrence(const BenchRecurrenceOptions& options) {
  for (const std::string& name : options.implementations) implementation_of(name);
  shapes_of(options);
  Kokkos::ScopeGuard kokkos(Kokkos::InitializationSettings().set_disable_warnings(true));
  Runtime runtime;
  std::unique_ptr<Timer> timer;
  if (options.clock == "wall")
    timer = std::make_unique<WallTimer>();
  else
    timer = std::make_unique<ProcessorTimer>();
  const std::string dtype = !options.dtype.empty() ? options.dtype : runs_on_host ? "float32" : "bfloat16";
  std::vector<Row> rows;
  if (dtype == "float32") run_all<float>(runtime, *timer, options, rows);
  if (dtype == "bfloat16") run_all<bfloat16>(runtime, *timer, options, rows);
  if (dtype == "float16") run_all<float16>(runtime, *timer, options, rows);
  print(rows);
  if (!options.json.empty()) write_json(options.json, rows, options);
  for (const Row& row : rows)
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
      ->add_option("--qk-norm", options->qk_norm,
                   "Normalise q and k inside (default: none on hosts, l2 on devices)")
      ->check(CLI::IsMember({"none", "l2"}));
  command->add_option("--repeat", options->repeat, "Timed calls of each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--clock", options->clock, "wall, or cpu: processor time over threads, for busy hosts")
      ->check(CLI::IsMember({"wall", "cpu"}))
      ->capture_default_str();
  command->add_option("--json", options->json, "Also write the figures to this file");
  command->footer(
      "GFLOP/s counts the chunked form's multiply-adds (5.46e9 forward, 21.2e9 backward at 1x2048 16/16 "
      "128x128).\nExit code 1 when a result differs from reference.");
  command->callback([options, &action] { action = [options] { return bench_recurrence(*options); }; });
}

}  // namespace deltaport::app
