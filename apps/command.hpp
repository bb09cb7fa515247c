// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace deltaport::app {

/// The process's own arguments, for MPI_Init and for the record kept beside a run.
struct Invocation {
  int* argc;
  char*** argv;
};

/// Body of the chosen subcommand; runs after parsing, returns the process's exit code. It starts MPI and
/// Kokkos itself when it needs them, so that commands without kernels answer at once.
using Action = std::function<int()>;

/// Each subcommand lives in one file and adds itself: declares its options on a new subcommand of `parent` and
/// sets `action` from the subcommand's callback.
using AddCommand = void (*)(CLI::App& parent, const Invocation& invocation, Action& action);

/// For an option that counts: an integer, `least` or more, that T holds. (CLI11's PositiveNumber tells the greatest
/// double, and its integers wrap around or stop at the greatest.)
template <class T>
CLI::Validator at_least(T least) {
  const std::string range = ">= " + std::to_string(least);
  return CLI::Validator(
      [least, range](const std::string& text) {
        T value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc::result_out_of_range)
          return "expected an integer " + range + " and <= " + std::to_string(std::numeric_limits<T>::max()) +
                 ", found '" + text + "'";
        if (error == std::errc() && end == text.data() + text.size() && value >= least) return std::string();
        return "expected an integer " + range + ", found '" + text + "'";
      },
      range);
}
/// For an option that measures: a finite number for which `inside` holds; `range` says it in words.
inline CLI::Validator number_in(const std::string& range, bool (*inside)(double)) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value{};
        if (CLI::detail::lexical_cast(text, value) && std::isfinite(value) && inside(value))
          return std::string();
        return "expected " + range + ", found '" + text + "'";
      },
      "");
}

void add_validate(CLI::App& parent, const Invocation& invocation, Action& action);
void add_schema(CLI::App& parent, const Invocation& invocation, Action& action);
void add_print_config(CLI::App& parent, const Invocation& invocation, Action& action);
void add_plan(CLI::App& parent, const Invocation& invocation, Action& action);
void add_data(CLI::App& parent, const Invocation& invocation, Action& action);
void add_train(CLI::App& parent, const Invocation& invocation, Action& action);
void add_generate(CLI::App& parent, const Invocation& invocation, Action& action);
void add_import(CLI::App& parent, const Invocation& invocation, Action& action);
void add_export(CLI::App& parent, const Invocation& invocation, Action& action);
void add_report(CLI::App& parent, const Invocation& invocation, Action& action);
void add_op(CLI::App& parent, const Invocation& invocation, Action& action);
void add_bench(CLI::App& parent, const Invocation& invocation, Action& action);
/// Below `bench`.
void add_bench_recurrence(CLI::App& bench, Action& action);
void add_verify(CLI::App& parent, const Invocation& invocation, Action& action);
void add_bench_offload(CLI::App& bench, const Invocation& invocation, Action& action);
void add_info(CLI::App& parent, const Invocation& invocation, Action& action);

}  // namespace deltaport::app
