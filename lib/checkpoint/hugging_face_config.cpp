// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/hugging_face_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/input_file.hpp"
#include "config/presets.hpp"
#include "core/json_depth.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/config/checks.hpp"
#include "deltaport/config/load.hpp"

namespace deltaport::checkpoint {
namespace {

using nlohmann::json;

/// Reads the keys of a text model; what does not fit is collected.
class TextReader {
 public:
  TextReader(const json& text, std::string prefix) : text_(text), prefix_(std::move(prefix)) {}

  const std::vector<std::string>& problems() const { return problems_; }
  void problem(const std::string& what) { problems_.push_back(what); }

  std::int64_t count(const char* key) {
    const json* value = required(key);
    constexpr std::int64_t most = 1 << 24;
    if (value == nullptr) return 1;
    if (value->is_number_integer() && *value >= 1 && *value <= most) return value->get<std::int64_t>();
    problem(concat(prefix_, key, ": ", value->dump(), ", but an integer from 1 to ", most, " is needed"));
    return 1;
  }
  double number(const char* key, const json* value) {
    if (value != nullptr && value->is_number()) return value->get<double>();
    if (value == nullptr)
      problem(concat(prefix_, key, ": missing"));
    else
      problem(concat(prefix_, key, ": ", value->dump(), ", but a number is needed"));
    return 1.0;
  }
  double number(const char* key) { return number(key, find(key)); }
  /// A key that may be left out, and has one value that is understood.
  void only(const char* key, const json& allowed) {
    const json* value = find(key);
    if (value != nullptr && *value != allowed)
      problem(concat(prefix_, key, ": ", value->dump(), ", but deltaport computes with ", allowed.dump(),
                     " only"));
  }

  const json* find(const char* key) const {
    const auto found = text_.find(key);
    return found == text_.end() || found->is_null() ? nullptr : &*found;
  }

  /// From rope_parameters, or from beside it where older files have it.
  const json* rope(const char* key) const {
    for (const char* group : {"rope_parameters", "rope_scaling"}) {
      const json* parameters = find(group);
      if (parameters != nullptr && parameters->is_object() && parameters->contains(key))
        return &(*parameters)[key];
    }
    return find(key);
  }

  std::vector<LayerType> layers(std::int64_t count) {
    std::vector<LayerType> types;
    const json* list = find("layer_types");
    if (list == nullptr) {
      const std::int64_t interval =
          find("full_attention_interval") ? this->count("full_attention_interval") : 4;
      for (std::int64_t i = 0; i < count; ++i)
        types.push_back(i % interval == interval - 1 ? LayerType::attention : LayerType::gdn);
      return types;
    }
    if (!list->is_array() || static_cast<std::int64_t>(list->size()) != count) {
      problem(concat(prefix_, "layer_types: a list of num_hidden_layers = ", count, " names is needed"));
      return {LayerType::gdn};
    }
    for (const json& name : *list) {
      if (name == "linear_attention") {
        types.push_back(LayerType::gdn);
      } else if (name == "full_attention") {
        types.push_back(LayerType::attention);
      } else {
        problem(
            concat(prefix_, "layer_types: ", name.dump(), "; known are linear_attention and full_attention"));
        return {LayerType::gdn};
      }
    }
    return types;
  }

 private:
  const json* required(const char* key) {
    const json* value = find(key);
    if (value == nullptr) problem(concat(prefix_, key, ": missing"));
    return value;
  }
  const json& text_;
  std::string prefix_;
  std::vector<std::string> problems_;
};

/// The shortest pattern whose repetition is the list.
std::vector<LayerType> shortest_pattern(const std::vector<LayerType>& types) {
  for (std::size_t period = 1; period < types.size(); ++period) {
    bool repeats = true;
    for (std::size_t i = period; repeats && i < types.size(); ++i) repeats = types[i] == types[i - period];
    if (repeats) return {types.begin(), types.begin() + static_cast<std::ptrdiff_t>(period)};
  }
  return types;
}

void read_tied(const json& top, TextReader& reader, Architecture architecture, ModelConfig& model) {
  const json* inner = reader.find("tie_word_embeddings");
  const auto outer = top.find("tie_word_embeddings");
  const bool has_outer = architecture == Architecture::conditional_generation && outer != top.end();
  if (inner != nullptr && !inner->is_boolean())
    return reader.problem("tie_word_embeddings: true or false is needed");
  if (has_outer && !outer->is_boolean())
    return reader.problem("tie_word_embeddings: true or false is needed");
  if (inner != nullptr && has_outer && *inner != *outer)
    reader.problem(
        concat("tie_word_embeddings: ", outer->dump(), " at the top, ", inner->dump(), " in text_config"));
  model.tie_word_embeddings = has_outer ? outer->get<bool>() : inner != nullptr && inner->get<bool>();
}

ModelConfig read_model(const json& top, const json& text, Architecture architecture, TextReader& reader) {
  ModelConfig m;
  m.vocab_size = reader.count("vocab_size");
  m.hidden_size = reader.count("hidden_size");
  m.num_hidden_layers = reader.count("num_hidden_layers");
  m.intermediate_size = reader.count("intermediate_size");
  m.layer_pattern = shortest_pattern(reader.layers(m.num_hidden_layers));
  m.linear = {reader.count("linear_num_key_heads"),   reader.count("linear_num_value_heads"),
              reader.count("linear_key_head_dim"),    reader.count("linear_value_head_dim"),
              reader.count("linear_conv_kernel_dim"), 64};
  m.attention.num_heads = reader.count("num_attention_heads");
  m.attention.num_kv_heads = reader.count("num_key_value_heads");
  m.attention.head_dim = reader.count("head_dim");
  m.attention.rope_theta = reader.number("rope_parameters.rope_theta", reader.rope("rope_theta"));
  m.attention.partial_rotary_factor =
      reader.number("rope_parameters.partial_rotary_factor", reader.rope("partial_rotary_factor"));
  m.rms_norm_eps = reader.number("rms_norm_eps");
  if (text.contains("initializer_range")) m.initializer_range = reader.number("initializer_range");
  const json* type = reader.rope("rope_type");
  if (type != nullptr && *type != "default")
    reader.problem(concat("rope_parameters.rope_type: ", type->dump(),
                          ", but deltaport computes with \"default\" only"));
  reader.only("hidden_act", "silu");
  reader.only("attention_bias", false);
  reader.only("attn_output_gate", true);
  reader.only("num_experts", 0);
  read_tied(top, reader, architecture, m);
  return m;
}

/// Dimensions that do not go together, in the words of the configuration's own checks.
void check_dimensions(const ModelConfig& model, TextReader& reader) {
  RunConfig run;
  run.model = model;
  try {
    check_config(run);
  } catch (const ConfigError& e) {
    reader.problem(e.what());
  }
}

/// Model-independent parts of published configurations.
json published_defaults() {
  return {{"attention_bias", false},      {"attention_dropout", 0.0},
          {"attn_output_gate", true},     {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},      {"hidden_act", "silu"},
          {"mamba_ssm_dtype", "float32"}, {"max_position_embeddings", 262144},
          {"pad_token_id", nullptr},      {"use_cache", true}};
}

std::string torch_name(FileDtype dtype) {
  switch (dtype) {
    case FileDtype::bf16:
      return "bfloat16";
    case FileDtype::f16:
      return "float16";
    case FileDtype::f64:
      return "float64";
    default:
      return "float32";
  }
}

/// How many rotary frequencies follow each of three positions. Text has equal positions, so any split serves.
json mrope_section(const ModelConfig& model) {
  const auto rotary =
      std::llround(model.attention.partial_rotary_factor * static_cast<double>(model.attention.head_dim));
  const std::int64_t half = rotary / 2;
  return json::array({(half + 2) / 3, (half + 1) / 3, half / 3});
}

void set_model(json& text, const ModelConfig& m) {
  text["vocab_size"] = m.vocab_size;
  text["hidden_size"] = m.hidden_size;
  text["num_hidden_layers"] = m.num_hidden_layers;
  text["intermediate_size"] = m.intermediate_size;
  json layers = json::array();
  std::int64_t first_full = 0;
  for (std::int64_t i = 0; i < m.num_hidden_layers; ++i) {
    const bool full = m.layer_type(i) == LayerType::attention;
    if (full && first_full == 0) first_full = i + 1;
    layers.push_back(full ? "full_attention" : "linear_attention");
  }
  text["layer_types"] = layers;
  text.erase("full_attention_interval");
  if (first_full == static_cast<std::int64_t>(m.layer_pattern.size()))
    text["full_attention_interval"] = first_full;
  text["linear_num_key_heads"] = m.linear.num_key_heads;
  text["linear_num_value_heads"] = m.linear.num_value_heads;
  text["linear_key_head_dim"] = m.linear.key_head_dim;
  text["linear_value_head_dim"] = m.linear.value_head_dim;
  text["linear_conv_kernel_dim"] = m.linear.conv_kernel;
  text["num_attention_heads"] = m.attention.num_heads;
  text["num_key_value_heads"] = m.attention.num_kv_heads;
  text["head_dim"] = m.attention.head_dim;
  text["rms_norm_eps"] = m.rms_norm_eps;
  text["initializer_range"] = m.initializer_range;
  text["tie_word_embeddings"] = m.tie_word_embeddings;
  json& rope = text["rope_parameters"];
  if (!rope.is_object()) rope = json{{"rope_type", "default"}, {"mrope_interleaved", true}};
  if (!rope.contains("mrope_section")) rope["mrope_section"] = mrope_section(m);
  rope["rope_theta"] = m.attention.rope_theta;
  rope["partial_rotary_factor"] = m.attention.partial_rotary_factor;
}

}  // namespace

HuggingFaceConfig parse_hugging_face_config(const std::string& text, const std::string& file) {
  HuggingFaceConfig config;
  config.text = text;
  if (nests_too_deep(text))
    files::raise(FileOrigin::user,
                 concat(file, ": more than ", most_json_levels, " arrays and objects inside each other"));
  json top;
  try {
    top = json::parse(text);
  } catch (const json::exception& e) {
    files::raise(FileOrigin::user, concat(file, ": ", e.what()));
  }
  const std::string type = top.is_object() ? top.value("model_type", json("")).dump() : "\"\"";
  if (type != "\"qwen3_5\"" && type != "\"qwen3_5_text\"")
    files::raise(FileOrigin::user,
                 concat(file, ": model_type is ", type,
                        "; deltaport knows \"qwen3_5\" and \"qwen3_5_text\" (dense Qwen3.5)"));
  const bool nested = type == "\"qwen3_5\"";
  config.architecture = nested ? Architecture::conditional_generation : Architecture::causal_lm;
  if (nested && !(top.contains("text_config") && top["text_config"].is_object()))
    files::raise(FileOrigin::user, file + ": text_config is missing");
  const json& inner = nested ? top["text_config"] : top;
  TextReader reader(inner, nested ? "text_config." : "");
  config.model = read_model(top, inner, config.architecture, reader);
  if (reader.problems().empty()) check_dimensions(config.model, reader);
  if (!reader.problems().empty()) {
    std::string all = file + ": not a model that deltaport can compute:";
    for (const std::string& problem : reader.problems()) all += "\n  " + problem;
    files::raise(FileOrigin::user, all);
  }
  config.model.preset = preset_of(config.model);
  return config;
}

HuggingFaceConfig read_hugging_face_config(const Path& folder) {
  const Path path = folder / "config.json";
  const files::InputFile file(path, FileOrigin::user);
  constexpr std::uint64_t most = 1 << 24;
  if (file.bytes() > most) files::raise(FileOrigin::user, path.string() + ": too large for a configuration");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, file.bytes(), text.data());
  return parse_hugging_face_config(text, path.string());
}

std::string causal_lm_config(const ModelConfig& model, FileDtype dtype, const HuggingFaceConfig* base) {
  json text = published_defaults();
  if (base != nullptr) {
    const json top = json::parse(base->text);
    const bool nested = base->architecture == Architecture::conditional_generation;
    text = nested ? top["text_config"] : top;
    const bool same_type = text.value("dtype", text.value("torch_dtype", json(""))) == torch_name(dtype);
    if (!nested && same_type && model_differences(model, "", base->model, "").empty()) return base->text;
  }
  set_model(text, model);
  text["architectures"] = json::array({"Qwen3_5ForCausalLM"});
  text["model_type"] = "qwen3_5_text";
  text["mtp_num_hidden_layers"] = 0;
  text.erase("torch_dtype");
  text["dtype"] = torch_name(dtype);
  return text.dump(2) + "\n";
}

std::vector<std::string> model_differences(const ModelConfig& a, const std::string& a_name,
                                           const ModelConfig& b, const std::string& b_name) {
  RunConfig left, right;
  left.model = a;
  right.model = b;
  // Any pattern of the same layers is the same.
  for (ModelConfig* m : {&left.model, &right.model}) {
    std::vector<LayerType> types;
    for (std::int64_t i = 0; i < m->num_hidden_layers; ++i) types.push_back(m->layer_type(i));
    m->layer_pattern = shortest_pattern(types);
  }
  std::vector<std::string> out;
  for (const IdentityDifference& d : identity_differences(left, right))
    if (d.path != "model.initializer_range")
      out.push_back(concat(d.path, ": ", d.before, " in ", a_name, ", ", d.after, " in ", b_name));
  return out;
}

}  // namespace deltaport::checkpoint

namespace deltaport {

std::string preset_of(const ModelConfig& model) {
  for (const std::string_view name : config::preset_names()) {
    if (name == "none" || name == "tiny") continue;
    LoadRequest request;
    request.overrides = {concat("--model.preset=", name)};
    request.environment.emplace();
    request.data = DataSection::optional;
    const ModelConfig preset = load_config(request).config.model;
    if (checkpoint::model_differences(preset, "", model, "").empty()) return std::string(name);
  }
  return "none";
}

std::string model_yaml(ModelConfig model) {
  model.preset = preset_of(model);
  RunConfig run;
  run.model = std::move(model);
  const std::string all = canonical_yaml(run);
  const std::size_t begin = all.find("\nmodel:") + 1;
  std::size_t end = all.find('\n', begin);
  while (end + 1 < all.size() && (all[end + 1] == ' ' || all[end + 1] == '\n')) end = all.find('\n', end + 1);
  std::string text = all.substr(begin, end + 1 - begin);
  const std::string absent = "  init_from: \"none\"\n";
  if (const std::size_t at = text.find(absent); at != std::string::npos) text.erase(at, absent.size());
  return text;
}

ModelConfig read_hugging_face_model(const std::filesystem::path& folder) {
  return checkpoint::read_hugging_face_config(folder).model;
}

}  // namespace deltaport
