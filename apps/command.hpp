// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <type_traits>

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

/// For an option that counts: an integer, `least` or more. (CLI11's PositiveNumber tells the greatest double.)
template <class T>
CLI::Validator at_least(T least) {
  const std::string range = ">= " + std::to_string(least);
  return CLI::Validator(
      [least, range](const std::string& text) {
        T value{};
        const bool wraps = std::is_unsigned_v<T> && text.starts_with('-');  // CLI11 reads -1 as the greatest
        if (!wraps && CLI::detail::lexical_cast(text, value) && value >= least) return std::string();
        return "expected an integer " + range + ", found '" + text + "'";
      },
      range);
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
