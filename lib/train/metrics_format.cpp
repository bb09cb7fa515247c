// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_format.hpp"

#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "deltaport/core/error.hpp"

namespace deltaport::train {
namespace {

using Json = nlohmann::json;

std::string hex(double value) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%a", value);
  return digits;
}

// The keys of each kind of record, in their order. `visit` writes a record or reads one.

template <class Visit>
void fields(RunMetrics& m, Visit& visit) {
  visit("name", m.name);
  visit("version", m.version);
  visit("parameters", m.parameters);
  visit("ranks", m.ranks);
  visit("steps", m.steps);
  visit("bytes_per_token", m.bytes_per_token);
  visit.optional("precision", m.precision);
}

template <class Visit>
void fields(StepMetrics& m, Visit& visit) {
  visit("step", m.step);
  visit("loss", m.loss);
  visit.derived("loss_hex", hex(m.loss));
  visit("grad_norm", m.grad_norm);
  visit("lr", m.lr);
  visit("tokens", m.tokens);
  visit("valid_tokens", m.valid_tokens);
  visit("tokens_total", m.tokens_total);
  visit("seconds", m.seconds);
  visit.derived("tokens_per_second", m.tokens_per_second());
  visit("memory_allocated_bytes", m.memory_allocated_bytes);
  visit("memory_reserved_bytes", m.memory_reserved_bytes);
}

template <class Visit>
void fields(EvalMetrics& m, Visit& visit) {
  visit("step", m.step);
  visit("loss", m.loss);
  visit.derived("loss_hex", hex(m.loss));
  visit("valid_tokens", m.valid_tokens);
  visit("seconds", m.seconds);
}

template <class Visit>
void fields(CheckpointMetrics& m, Visit& visit) {
  visit("step", m.step);
}

template <class Visit>
void fields(GraphMetrics& m, Visit& visit) {
  visit("step", m.step);
  visit("graphs", m.graphs);
  visit("operations", m.operations);
  visit("bytes", m.bytes);
  visit("capture_seconds", m.capture_seconds);
}

template <class Visit>
void fields(OffloadMetrics& m, Visit& visit) {
  visit("step", m.step);
  visit("to_host_bytes", m.to_host_bytes);
  visit("to_device_bytes", m.to_device_bytes);
  visit("freed_bytes", m.freed_bytes);
  visit("useless_bytes", m.useless_bytes);
  visit("groups", m.groups);
  visit("to_host_seconds", m.to_host_seconds);
  visit("to_device_seconds", m.to_device_seconds);
  visit("stall_seconds", m.stall_seconds);
  visit("to_host_stall_seconds", m.to_host_stall_seconds);
  visit("step_seconds", m.step_seconds);
  visit.derived("overlap", m.overlap());
  visit("peak_allocated_bytes", m.peak_allocated_bytes);
  visit("peak_reserved_bytes", m.peak_reserved_bytes);
  visit("pinned_bytes", m.pinned_bytes);
  visit("driver_used_bytes", m.driver_used_bytes);
  visit("peak_blocks", m.peak_blocks);
}

template <class Visit>
void fields(WarningMetrics& m, Visit& visit) {
  visit("step", m.step);
  visit("text", m.text);
}

/// Builds {"kind":"...","key":value,...} with keys in the order of the calls.
class LineWriter {
 public:
  explicit LineWriter(std::string_view kind) : text_("{\"kind\":\"") { (text_ += kind) += '"'; }
  void operator()(const char* key, std::int64_t value) { put(key, std::to_string(value)); }
  void operator()(const char* key, double value) {
    if (!std::isfinite(value)) return put(key, "null");
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    put(key, std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
  void operator()(const char* key, const std::string& value) {
    put(key, Json(value).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  /// A value for other readers, which follows from the record's own.
  template <class Value>
  void derived(const char* key, const Value& value) {
    (*this)(key, value);
  }
  /// A value that a record may lack; empty, it is left out.
  void optional(const char* key, const std::string& value) {
    if (!value.empty()) (*this)(key, value);
  }
  std::string str() const { return text_ + "}"; }

 private:
  void put(const char* key, std::string_view value) {
    ((text_ += ",\"") += key) += "\":";
    text_ += value;
  }
  std::string text_;
};

/// Takes the values out of a parsed line; null is NaN.
class LineReader {
 public:
  explicit LineReader(const Json& json) : json_(json) {}
  template <class Value>
  void operator()(const char* key, Value& value) {
    json_.at(key).get_to(value);
  }
  void operator()(const char* key, double& value) {
    const Json& found = json_.at(key);
    value = found.is_null() ? std::numeric_limits<double>::quiet_NaN() : found.get<double>();
  }
  void optional(const char* key, std::string& value) {
    if (json_.contains(key)) json_.at(key).get_to(value);
  }
  template <class Value>
  void derived(const char*, const Value&) {}

 private:
  const Json& json_;
};

template <class Record>
std::string line_of(std::string_view kind, Record record) {
  LineWriter writer(kind);
  fields(record, writer);
  return writer.str();
}

template <class Record>
Record record_of(const Json& json) {
  Record record;
  LineReader reader(json);
  fields(record, reader);
  return record;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  DELTAPORT_VALIDATE(file, DataError, path,
                     ": cannot be read; is this the directory of a run with logging.jsonl on?");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  DELTAPORT_VALIDATE(!file.bad(), DataError, path, ": reading failed");
  return text;
}

}  // namespace

std::string to_line(const RunMetrics& metrics) {
  return line_of("run", metrics);
}
std::string to_line(const StepMetrics& metrics) {
  return line_of("step", metrics);
}
std::string to_line(const EvalMetrics& metrics) {
  return line_of("eval", metrics);
}
std::string to_line(const CheckpointMetrics& metrics) {
  return line_of("checkpoint", metrics);
}
std::string to_line(const GraphMetrics& metrics) {
  return line_of("graphs", metrics);
}

std::string to_line(const OffloadMetrics& metrics) {
  return line_of("offload", metrics);
}

std::string to_line(const WarningMetrics& metrics) {
  return line_of("warning", metrics);
}

std::int64_t MetricsRecord::step_number() const {
  if (step) return step->step;
  if (offload) return offload->step;
  if (evaluation) return evaluation->step;
  if (graphs) return graphs->step;
  if (warning) return warning->step;
  return checkpoint ? checkpoint->step : 0;
}

MetricsRecord parse_line(std::string_view line) {
  MetricsRecord record;
  try {
    const Json json = Json::parse(line);
    const std::string kind = json.at("kind");
    if (kind == "run")
      record.run = record_of<RunMetrics>(json);
    else if (kind == "step")
      record.step = record_of<StepMetrics>(json);
    else if (kind == "eval")
      record.evaluation = record_of<EvalMetrics>(json);
    else if (kind == "checkpoint")
      record.checkpoint = record_of<CheckpointMetrics>(json);
    else if (kind == "graphs")
      record.graphs = record_of<GraphMetrics>(json);
    else if (kind == "offload")
      record.offload = record_of<OffloadMetrics>(json);
    else if (kind == "warning")
      record.warning = record_of<WarningMetrics>(json);
    else
      throw DataError("unknown kind of record \"" + kind + "\"");
  } catch (const Json::exception& e) {
    throw DataError(concat("not a metrics record (", e.what(), ")"));
  }
  return record;
}

std::size_t visit_lines(const std::string& path,
                        const std::function<void(const MetricsRecord&, std::size_t)>& visit) {
  const std::string text = read_file(path);
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    MetricsRecord record;
    try {
      record = parse_line(std::string_view(text).substr(begin, end - begin));
    } catch (const DataError& e) {
      if (end + 1 == text.size()) break;
      throw DataError(concat(path, ':', number, ": ", e.what(), "; move the file away to start a new one"));
    }
    visit(record, begin);
    begin = end + 1;
  }
  return begin;
}

}  // namespace deltaport::train
