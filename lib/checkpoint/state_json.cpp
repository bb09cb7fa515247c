// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/state_json.hpp"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace deltaport::checkpoint {

namespace {

using nlohmann::json;

// JSON has no NaN or infinity; a run may well stop with them.
json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;  // written with as many digits as bring the same bits back
}

double number(const json& j) {
  if (!j.is_string()) return j.get<double>();
  const auto text = j.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  DELTAPORT_VALIDATE(text == "inf" || text == "-inf", CheckpointError, "\"", text, "\" is not a number");
  return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

}  // namespace

std::string to_json(const TrainingState& s, std::int64_t optimizer_updates) {
  try {
    const json extra = json::parse(s.extra_json);
    DELTAPORT_VALIDATE(extra.is_object(), CheckpointError, "TrainingState::extra_json must be a JSON object");
    const json j = {{"step", s.step},
                    {"consumed_samples", s.consumed_samples},
                    {"tokens", s.tokens},
                    {"seed", s.seed},
                    {"data_fingerprint", s.fingerprint},
                    {"loss", number(s.loss)},
                    {"loss_ema", number(s.loss_ema)},
                    {"lr", number(s.lr)},
                    {"wall_seconds", number(s.wall_seconds)},
                    {"optimizer_updates", optimizer_updates},
                    {"extra", extra}};
    return j.dump(1) + "\n";
  } catch (const json::exception& e) {
    throw CheckpointError(concat("training state cannot be written as JSON: ", e.what()));
  }
}

ParsedState parse_state(const std::string& text, const std::string& file) {
  try {
    const json j = json::parse(text);
    ParsedState parsed;
    TrainingState& s = parsed.state;
    s.step = j.at("step").get<std::int64_t>();
    s.consumed_samples = j.at("consumed_samples").get<std::int64_t>();
    s.tokens = j.at("tokens").get<std::int64_t>();
    s.seed = j.at("seed").get<std::uint64_t>();
    s.fingerprint = j.at("data_fingerprint").get<std::string>();
    s.loss = number(j.at("loss"));
    s.loss_ema = number(j.at("loss_ema"));
    s.lr = number(j.at("lr"));
    s.wall_seconds = number(j.at("wall_seconds"));
    s.extra_json = j.at("extra").dump();
    parsed.optimizer_updates = j.at("optimizer_updates").get<std::int64_t>();
    return parsed;
  } catch (const json::exception& e) {
    throw CheckpointError(concat(file, ": damaged: ", e.what()));
  }
}

}  // namespace deltaport::checkpoint
