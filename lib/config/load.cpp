// SPDX-License-Identifier: Apache-2.0
#include "deltaport/config/load.hpp"

#include <algorithm>
#include <set>

#include "config/convert.hpp"
#include "config/cross_checks.hpp"
#include "config/interpolate.hpp"
#include "config/layers.hpp"
#include "config/presets.hpp"
#include "deltaport/core/error.hpp"

extern char** environ;

namespace deltaport {
namespace config {
namespace {

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) result[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return result;
}

enum class Interpolation { on, off };

/// One loading: merges the layers, then turns them into a RunConfig.
class Loader {
 public:
  Loader(std::map<std::string, std::string> environment, Interpolation interpolation)
      : environment_(std::move(environment)), interpolation_(interpolation) {}

  void read_files(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      std::string text;
      if (!read_file(file, text, diagnostics_)) {
        unreadable_ = true;
        continue;
      }
      read_text(file, std::move(text));
    }
  }

  void read_text(const std::string& name, std::string text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // byte order mark
    diagnostics_.add_source(name, text);
    const std::size_t errors = diagnostics_.count();
    const NodePtr root = parse_yaml(text, name, diagnostics_);
    if (!root) {
      unreadable_ = unreadable_ || diagnostics_.count() > errors;
    } else {
      // A document of nothing but comments is an empty configuration.
      if (root->kind != Node::Kind::null)
        flatten(*root, "", root->where, {LayerSource::Kind::file, name}, layer_, diagnostics_);
    }
    result_.files.push_back({name, std::move(text)});
  }

  void read_arguments(const std::vector<std::string>& overrides) {
    read_environment(environment_, layer_, result_.environment, diagnostics_);
    read_overrides(overrides, layer_, diagnostics_);
    result_.overrides = overrides;
  }

  LoadedConfig finish(DataSection data) {
    apply_preset();
    Interpolator interpolator(layer_, environment_, diagnostics_);
    for (const Field& field : fields()) resolve(field, interpolator);
    result_.environment.insert(interpolator.used_environment().begin(),
                               interpolator.used_environment().end());
    check_version();
    check_data(data);
    check_rules(
        result_.config, [&](const std::string& path) { return failed_.count(path) == 0; },
        [&](const std::vector<std::string>& paths, const std::string& message) {
          diagnostics_.error(place_of(paths), message);
        });
    if (diagnostics_.failed()) throw ConfigError(diagnostics_.report());
    result_.warnings = diagnostics_.warnings();
    return std::move(result_);
  }

 private:
  // The preset fills only keys that nothing else has set.
  void apply_preset() {
    const auto found = layer_.find("model.preset");
    if (found == layer_.end()) return;
    Diagnostics quiet;  // resolve() reports what is wrong with the name
    Interpolator interpolator(layer_, environment_, quiet);
    const NodePtr node = expanded("model.preset", *found->second.node, interpolator);
    const auto value = node ? convert(*find_field("model.preset"), *node, quiet) : std::nullopt;
    if (!value) return;
    const std::string name = std::get<std::string>(*value);
    const std::string source = "<preset " + name + ">";
    const NodePtr root = parse_yaml(preset_yaml(name), source, diagnostics_);
    if (!root || root->kind == Node::Kind::null) return;
    Layer preset;
    flatten(*root, "", root->where, {LayerSource::Kind::preset, name}, preset, diagnostics_);
    layer_.merge(preset);
  }

  NodePtr expanded(const std::string& path, const Node& node, Interpolator& interpolator) const {
    if (interpolation_ == Interpolation::off) return std::make_shared<Node>(node);
    return interpolator.expand(path, node);
  }

  void resolve(const Field& field, Interpolator& interpolator) {
    const std::string path(field.path);
    const auto found = layer_.find(path);
    const bool assigned = found != layer_.end() && !(found->second.node->kind == Node::Kind::null &&
                                                     field.null == Null::means_default);
    result_.origins[path] = assigned ? found->second.origin : "default";
    if (!assigned && field.derived_default.empty()) return;
    std::optional<Value> value;
    if (assigned) {
      const NodePtr node = expanded(path, *found->second.node, interpolator);
      value = node ? convert(field, *node, diagnostics_) : std::nullopt;
    } else if (auto text = interpolator.text_of(path, default_place(path))) {
      value = std::move(*text);
    }
    if (value)
      field.binding.set(result_.config, *value);
    else
      failed_.insert(path);
  }

  void check_version() {
    if (result_.files.empty() || layer_.count("version") != 0) return;
    diagnostics_.warn({result_.files.front().path, 0, 0, 0, 1}, "no 'version', assuming 1: add 'version: 1'");
  }

  void check_data(DataSection data) {
    if (data == DataSection::optional || unreadable_ || failed_.count("data.train") != 0) return;
    if (!result_.config.data.train.empty()) return;
    Location where = place_of({"data.train"});
    if (layer_.count("data.train") == 0 && !result_.files.empty())
      where = {result_.files.front().path, 0, 0, 0, 1};
    diagnostics_.error(where, "'data.train' needs at least one entry",
                       "add data: {train: [{path: PREFIX}]} for PREFIX.bin and PREFIX.idx");
  }

  static Location default_place(const std::string& path) {
    return {"<default>:" + path, default_order, 0, 0, 1};
  }

  // The user's own line is the most useful place; a preset's or a default the least.
  Location place_of(const std::vector<std::string>& paths) const {
    for (const std::string& path : paths) {
      const auto found = layer_.find(path);
      if (found != layer_.end() && !found->second.origin.starts_with("preset "))
        return found->second.node->where;
    }
    return default_place(paths.front());
  }

  std::map<std::string, std::string> environment_;
  Interpolation interpolation_;
  Diagnostics diagnostics_;
  Layer layer_;
  LoadedConfig result_;
  std::set<std::string> failed_;
  bool unreadable_ = false;  // a file is missing or is no YAML, so that what it would set is unknown
};

}  // namespace
}  // namespace config

LoadedConfig load_config(const LoadRequest& request) {
  config::Loader loader(request.environment ? *request.environment : config::process_environment(),
                        config::Interpolation::on);
  loader.read_files(request.files);
  loader.read_arguments(request.overrides);
  return loader.finish(request.data);
}

RunConfig parse_canonical(std::string_view text, const std::string& name) {
  config::Loader loader({}, config::Interpolation::off);
  loader.read_text(name, std::string(text));
  return loader.finish(DataSection::optional).config;
}

}  // namespace deltaport
