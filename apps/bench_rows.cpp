// SPDX-License-Identifier: Apache-2.0
#include "bench_rows.hpp"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench_timer.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/parallel.hpp"

namespace deltaport::app {
namespace {

/// Milliseconds that others take on an H200 in bfloat16, with the norm of q and k inside; 0 where none are published.
struct Published {
  Kind kind;
  Direction direction;
  std::int64_t batch, tokens;
  int value_heads;
  double fla, best;  // FLA 0.5.2; the best of FlashQLA, FlashInfer and others
};
constexpr Published peers[] = {
    {Kind::gdn, Direction::forward, 1, 32768, 16, 1.579, 0.498},
    {Kind::gdn, Direction::forward, 1, 32768, 32, 0, 0.877},
    {Kind::gdn, Direction::forward, 4, 2048, 16, 0.253, 0.105},
    {Kind::gdn, Direction::forward, 1, 2048, 16, 0, 0.086},
    {Kind::gdn, Direction::backward, 1, 32768, 16, 4.507, 0},
    {Kind::gdn, Direction::backward, 1, 32768, 32, 0, 2.515},
    {Kind::gdn, Direction::backward, 4, 2048, 16, 0.696, 0},
    {Kind::gdn2, Direction::forward, 1, 32768, 16, 2.776, 0},
    {Kind::gdn2, Direction::backward, 1, 32768, 16, 10.751, 0},
    {Kind::gdn2, Direction::forward, 4, 2048, 16, 0.541, 0},
    {Kind::gdn2, Direction::backward, 4, 2048, 16, 2.349, 0},
};

Published published(const BenchRow& row) {
  const CallShape& s = row.shape;
  const bool measured =
      s.key_heads == 16 && s.key_dim == 128 && s.value_dim == 128 && row.dtype == "bfloat16";
  for (const Published& peer : peers)
    if (measured && peer.kind == row.kind && peer.direction == row.direction && peer.batch == s.batch &&
        peer.tokens == s.tokens && peer.value_heads == s.value_heads)
      return peer;
  return {row.kind, row.direction, s.batch, s.tokens, s.value_heads, 0, 0};
}

std::string shape_text(const CallShape& s) {
  std::ostringstream out;
  out << s.batch << 'x' << s.tokens << ' ' << s.key_heads << '/' << s.value_heads << ' ' << s.key_dim << 'x'
      << s.value_dim;
  return out.str();
}

void print_on_host(const BenchRow& row) {
  const double middle = median(row.seconds);
  std::printf("%-5s %-9s %-22s %-9s %-10s %10.3f %10.3f %9.1f %6.1f%% %9.1e%s\n", name_of(row.kind),
              name_of(row.direction), shape_text(row.shape).c_str(), row.dtype.c_str(),
              row.implementation.c_str(), 1e3 * middle, 1e3 * least(row.seconds),
              1e-9 * nominal_flops(row.direction, row.shape) / middle, 100 * median(row.shares),
              row.largest_error, row.is_right ? "" : "  WRONG");
}

std::string milliseconds(double value) {
  if (value == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", value);
  return text;
}

void print_on_device(const BenchRow& row) {
  const double middle = median(row.seconds);
  const Published peer = published(row);
  std::printf("%-5s %-9s %-22s %-9s %-10s %-11s %9.4f %8.4f %9.1f %8.1f %8.4f %7.1f%% %8s %8s %9.1e%s\n",
              name_of(row.kind), name_of(row.direction), shape_text(row.shape).c_str(), row.dtype.c_str(),
              row.implementation.c_str(), name_of(row.keep), 1e3 * middle, 1e3 * least(row.seconds),
              1e-12 * nominal_flops(row.direction, row.shape) / middle, 1e-6 * row.least_bytes,
              1e3 * row.floor_seconds, 100 * median(row.shares), milliseconds(peer.fla).c_str(),
              milliseconds(peer.best).c_str(), row.largest_error, row.is_right ? "" : "  WRONG");
}

}  // namespace

const char* name_of(Kind kind) {
  return kind == Kind::gdn ? "gdn" : "gdn2";
}
const char* name_of(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}
const char* name_of(recurrence::Keep keep) {
  return keep == recurrence::Keep::inputs ? "inputs" : "preparation";
}

std::vector<BenchCase> published_cases() {
  const CallShape whole{1, 32768, 16, 16, 128, 128}, grouped{1, 32768, 16, 32, 128, 128};
  const CallShape batch{4, 2048, 16, 16, 128, 128}, one{1, 2048, 16, 16, 128, 128};
  return {{Kind::gdn, one},   {Kind::gdn, batch},   {Kind::gdn2, batch},
          {Kind::gdn, whole}, {Kind::gdn, grouped}, {Kind::gdn2, whole}};
}

double nominal_flops(Direction direction, const CallShape& s) {
  constexpr double c = 64;
  const double k = s.key_dim, v = s.value_dim;
  const double forward = 6 * k * v + 4 * c * (k + v) + 2 * c * c / 3;
  const double heads = static_cast<double>(s.batch * s.tokens) * s.value_heads;
  return heads * forward * (direction == Direction::forward ? 1.0 : 21.2 / 5.46);
}

double least_bytes(Kind kind, Direction direction, const CallShape& s, double element) {
  const double rows = static_cast<double>(s.batch * s.tokens), hv = s.value_heads;
  double in = element * (2.0 * s.key_heads * s.key_dim + hv * s.value_dim);
  in += kind == Kind::gdn ? 8 * hv : hv * ((4 + element) * s.key_dim + element * s.value_dim);
  const double o = element * hv * s.value_dim;
  return rows * (direction == Direction::forward ? in + o : 2 * in + o);
}

void print_header() {
  if (runs_on_host) {
    std::printf(
        "of FMA: share of the rate at which multiply-adds alone run on the same cores, measured between the "
        "calls.\n"
        "GFLOP/s and it count the products that the chunked form needs; backward counts its recomputation, "
        "not all\n"
        "of which `host` has to do. error: against reference, in float64\n");
    std::printf("%-5s %-9s %-22s %-9s %-10s %10s %10s %9s %7s %9s\n", "kind", "direction", "BxT H/HV KxV",
                "dtype", "impl", "median ms", "best ms", "GFLOP/s", "of FMA", "error");
  } else {
    std::printf(
        "floor: the larger of MB at %.2f TB/s and the products at %.0f TFLOP/s (%s); FLA and peer: "
        "published\n"
        "keeps: what forward leaves for backward, which makes the preparation of the chunks again unless it "
        "is kept\n",
        1e-12 * device_ceiling.bytes_per_second, 1e-12 * device_ceiling.flops, device_ceiling.name);
    std::printf("%-5s %-9s %-22s %-9s %-10s %-11s %9s %8s %9s %8s %8s %8s %8s %8s %9s\n", "kind", "direction",
                "BxT H/HV KxV", "dtype", "impl", "keeps", "median ms", "best ms", "TFLOP/s", "MB", "floor",
                "of floor", "FLA", "peer", "error");
  }
}

void print(const BenchRow& row) {
  runs_on_host ? print_on_host(row) : print_on_device(row);
  std::fflush(stdout);
}

void write_json(JsonFile& file, const std::vector<BenchRow>& rows, const std::string& clock,
                const std::string& gates) {
  nlohmann::ordered_json json;
  json["threads"] = ExecutionSpace().concurrency();
  json["execution_space"] = ExecutionSpace::name();
  json["clock"] = clock;
  json["gates"] = gates;
  json["share_of"] = runs_on_host ? "multiply-adds measured beside each call" : device_ceiling.name;
  json["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    const CallShape& s = row.shape;
    json["rows"].push_back(
        {{"kind", name_of(row.kind)},
         {"direction", name_of(row.direction)},
         {"shape", {s.batch, s.tokens, s.key_heads, s.value_heads, s.key_dim, s.value_dim}},
         {"dtype", row.dtype},
         {"impl", row.implementation},
         {"keeps", name_of(row.keep)},
         {"median_seconds", median(row.seconds)},
         {"best_seconds", least(row.seconds)},
         {"nominal_flops", nominal_flops(row.direction, s)},
         {"share", median(row.shares)},
         {"floor_seconds", row.floor_seconds},
         {"least_bytes", row.least_bytes},
         {"fla_seconds", 1e-3 * published(row).fla},
         {"best_peer_seconds", 1e-3 * published(row).best},
         {"seconds", row.seconds},
         {"error", std::isfinite(row.largest_error) ? nlohmann::ordered_json(row.largest_error)
                                                    : nlohmann::ordered_json(nullptr)},
         {"right", row.is_right}});
  }
  file.write(json.dump(2));
}

}  // namespace deltaport::app
