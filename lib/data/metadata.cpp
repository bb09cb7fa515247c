// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/metadata.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "deltaport/core/error.hpp"

namespace deltaport {

std::string to_json(const TokenFileMetadata& m) {
  nlohmann::ordered_json json;
  json["tokenizer"] = m.tokenizer;
  json["tokenizer_hash"] = m.tokenizer_hash;
  json["vocab"] = m.vocab_size;
  json["end_of_document"] = m.end_of_document;
  json["documents"] = m.documents;
  json["tokens"] = m.tokens;
  json["max_id"] = m.max_id;
  json["dtype"] = m.dtype;
  json["xxh3"] = m.xxh3;
  return json.dump(2) + "\n";
}

std::optional<TokenFileMetadata> read_metadata(const std::string& prefix) {
  const std::string path = prefix + ".meta.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(file);
    TokenFileMetadata m;
    json.at("tokenizer").get_to(m.tokenizer);
    json.at("tokenizer_hash").get_to(m.tokenizer_hash);
    json.at("vocab").get_to(m.vocab_size);
    json.at("end_of_document").get_to(m.end_of_document);
    json.at("documents").get_to(m.documents);
    json.at("tokens").get_to(m.tokens);
    json.at("max_id").get_to(m.max_id);
    json.at("dtype").get_to(m.dtype);
    json.at("xxh3").get_to(m.xxh3);
    return m;
  } catch (const nlohmann::json::exception& e) {
    throw DataError(
        concat(path, ": damaged side-car: ", e.what(), "; prepare the data again or remove this file"));
  }
}

}  // namespace deltaport
