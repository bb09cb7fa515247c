// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/mark.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/node.hpp"

namespace deltaport::config {

/// Thrown to leave the parser when nesting is too deep to be a configuration.
struct TooDeep {
  Location where;
};

/// Turns yaml-cpp's events into nodes. Events, because yaml-cpp's own tree forgets duplicate keys' places and
/// expands what we reject.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string source, Diagnostics& diagnostics);

  NodePtr root() const { return root_; }
  Location document_start() const { return document_start_; }
  Location place(const YAML::Mark& mark, std::size_t length = 1) const;

  void OnDocumentStart(const YAML::Mark& mark) override { document_start_ = place(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override;
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override;
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override;
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    NodePtr node;
    bool expects_value = false;  // in a map: the key was seen
    std::map<std::string, Location> keys;
    std::optional<Node::Member> member;  // the key waiting for its value; empty when the key was refused
  };
  NodePtr make(Node::Kind kind, const Location& where, YAML::anchor_t anchor);
  void check_tag(const std::string& tag, const Location& where);
  void open(const NodePtr& node);
  void close();
  void place_node(const NodePtr& node);
  void take_key(Frame& frame, const Node& node);
  std::string path_to(const std::string& key) const;

  std::string source_;
  int source_order_;
  Diagnostics& diagnostics_;
  NodePtr root_;
  Location document_start_;
  std::vector<Frame> frames_;
  std::map<YAML::anchor_t, NodePtr> anchors_;
};

}  // namespace deltaport::config
