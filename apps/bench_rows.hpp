// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench_problem.hpp"
#include "json_file.hpp"

/// The rows that `bench recurrence` measures, what they are held against, and how they are shown.
namespace deltaport::app {

enum class Direction { forward, backward };
const char* name_of(Kind kind);
const char* name_of(Direction direction);
const char* name_of(recurrence::Keep keep);

/// One line of the table.
struct BenchRow {
  Kind kind;
  Direction direction;
  CallShape shape;
  std::string dtype, implementation;
  recurrence::Keep keep;                ///< what forward keeps for backward
  std::vector<double> seconds, shares;  ///< one per repetition; the share is of the ceiling beside it
  double largest_error = 0;
  bool is_right = true;
  double floor_seconds = 0, least_bytes = 0;  ///< devices
};

/// What a device cannot beat: by its memory, and by its matrix units.
struct DeviceCeiling {
  const char* name;
  double bytes_per_second, flops;
};
inline constexpr DeviceCeiling device_ceiling{"H200", 4.16e12, 790e12};

struct BenchCase {
  Kind kind;
  CallShape shape;
};
/// What others published figures for on an H200, and the smallest of those shapes.
std::vector<BenchCase> published_cases();

/// Multiply-adds of the chunked (WY) form with chunks of 64, as two each, without what an implementation may save
/// by triangles: 5.46e9 at T = 2048, 16 heads of 128. The backward count holds a second forward. The same
/// counts serve both rules.
double nominal_flops(Direction direction, const CallShape& shape);

/// Bytes that a call cannot avoid to read or write.
double least_bytes(Kind kind, Direction direction, const CallShape& shape, double element);

void print_header();
void print(const BenchRow& row);
/// Throws Error when the file cannot be written.
void write_json(JsonFile& file, const std::vector<BenchRow>& rows, const std::string& clock,
                const std::string& gates);

}  // namespace deltaport::app
