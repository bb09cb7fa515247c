// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "config/field.hpp"
#include "deltaport/config/schema.hpp"
#include "paths.hpp"

namespace deltaport::test {
namespace {

using Json = nlohmann::json;

const Json& at(const Json& schema, const std::string& path) {
  const Json* node = &schema;
  for (const std::string& part : parts_of(path)) node = &node->at("properties").at(part);
  return *node;
}

void expect_closed(const Json& node) {
  if (node.is_object() && node.value("type", Json()) == "object") {
    EXPECT_EQ(node.at("additionalProperties"), false);
  }
  if (node.is_structured())
    for (const Json& child : node) expect_closed(child);
}

TEST(JsonSchema, DescribesEveryKey) {
  const Json schema = Json::parse(json_schema());
  EXPECT_EQ(schema.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
  expect_closed(schema);
  for (const config::Field& field : config::fields()) {
    const Json& node = at(schema, std::string(field.path));
    EXPECT_TRUE(node.contains("default")) << field.path;
    EXPECT_GT(node.at("description").get<std::string>().size(), 3u) << field.path;
  }
}

TEST(JsonSchema, HasRangesWordsAndDefaults) {
  const Json schema = Json::parse(json_schema());
  EXPECT_EQ(at(schema, "checkpoint.keep_last").at("minimum"), 2);
  EXPECT_EQ(at(schema, "optimizer.lr").at("exclusiveMinimum"), 0);
  EXPECT_EQ(at(schema, "optimizer.lr").at("default"), 3e-4);
  EXPECT_EQ(at(schema, "schedule.name").at("anyOf")[0].at("enum"), Json({"constant", "cosine", "wsd"}));
  EXPECT_EQ(at(schema, "model.linear.chunk_size").at("anyOf")[0].at("enum"), Json({16, 32, 64}));
  EXPECT_EQ(at(schema, "run.dir").at("default"), "runs/${run.name}");
  EXPECT_EQ(at(schema, "data.train").at("items").at("required"), Json({"path"}));
  EXPECT_FALSE(at(schema, "data.valid").at("items").at("properties").contains("weight"));
  EXPECT_EQ(at(schema, "optimizer.betas").at("items").at("exclusiveMaximum"), 1);
}

}  // namespace
}  // namespace deltaport::test
