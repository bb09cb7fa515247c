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

/// Builds {"kind":"...","key":value,...} with keys in the order of the calls.
class Line {
 public:
  explicit Line(std::string_view kind) : text_("{\"kind\":\"") { (text_ += kind) += '"'; }
  Line& add(const char* key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Line& add(const char* key, double value) {
    if (!std::isfinite(value)) return raw(key, "null");
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return raw(key, std::string_view(digits, static_cast<std::size_t>(end - digits)));
  }
  Line& add(const char* key, const std::string& value) {
    return raw(key, Json(value).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  Line& hex(const char* key, double value) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "\"%a\"", value);
    return raw(key, digits);
  }
  std::string str() const { return text_ + "}"; }

 private:
  Line& raw(const char* key, std::string_view value) {
    ((text_ += ",\"") += key) += "\":";
    text_ += value;
    return *this;
  }
  std::string text_;
};

double number(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

RunMetrics run_of(const Json& json) {
  return {json.at("name"),  json.at("version"), json.at("parameters"),
          json.at("ranks"), json.at("steps"),   number(json, "bytes_per_token")};
}

StepMetrics step_of(const Json& json) {
  StepMetrics m;
  m.step = json.at("step");
  m.loss = number(json, "loss");
  m.grad_norm = number(json, "grad_norm");
  m.lr = number(json, "lr");
  m.tokens = json.at("tokens");
  m.valid_tokens = json.at("valid_tokens");
  m.tokens_total = json.at("tokens_total");
  m.seconds = number(json, "seconds");
  m.memory_allocated_bytes = json.at("memory_allocated_bytes");
  m.memory_reserved_bytes = json.at("memory_reserved_bytes");
  return m;
}

EvalMetrics evaluation_of(const Json& json) {
  return {json.at("step"), number(json, "loss"), json.at("valid_tokens"), number(json, "seconds")};
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

std::string to_line(const RunMetrics& m) {
  return Line("run")
      .add("name", m.name)
      .add("version", m.version)
      .add("parameters", m.parameters)
      .add("ranks", m.ranks)
      .add("steps", m.steps)
      .add("bytes_per_token", m.bytes_per_token)
      .str();
}

std::string to_line(const StepMetrics& m) {
  return Line("step")
      .add("step", m.step)
      .add("loss", m.loss)
      .hex("loss_hex", m.loss)
      .add("grad_norm", m.grad_norm)
      .add("lr", m.lr)
      .add("tokens", m.tokens)
      .add("valid_tokens", m.valid_tokens)
      .add("tokens_total", m.tokens_total)
      .add("seconds", m.seconds)
      .add("tokens_per_second", m.tokens_per_second())
      .add("memory_allocated_bytes", m.memory_allocated_bytes)
      .add("memory_reserved_bytes", m.memory_reserved_bytes)
      .str();
}

std::string to_line(const EvalMetrics& m) {
  return Line("eval")
      .add("step", m.step)
      .add("loss", m.loss)
      .hex("loss_hex", m.loss)
      .add("valid_tokens", m.valid_tokens)
      .add("seconds", m.seconds)
      .str();
}

std::int64_t MetricsRecord::step_number() const {
  if (step) return step->step;
  return evaluation ? evaluation->step : 0;
}

MetricsRecord parse_line(std::string_view line) {
  MetricsRecord record;
  try {
    const Json json = Json::parse(line);
    const std::string kind = json.at("kind");
    if (kind == "run")
      record.run = run_of(json);
    else if (kind == "step")
      record.step = step_of(json);
    else if (kind == "eval")
      record.evaluation = evaluation_of(json);
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
