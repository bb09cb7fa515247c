// SPDX-License-Identifier: Apache-2.0
#include "config/tree_builder.hpp"

#include <algorithm>
#include <utility>

namespace deltaport::config {
namespace {
constexpr std::size_t max_depth = 32;  // the schema needs 5
}

TreeBuilder::TreeBuilder(std::string source, Diagnostics& diagnostics)
    : source_(std::move(source)), source_order_(diagnostics.order_of(source_)), diagnostics_(diagnostics) {}

Location TreeBuilder::place(const YAML::Mark& mark, std::size_t length) const {
  return {source_, source_order_, mark.line + 1, mark.column + 1,
          static_cast<int>(std::min<std::size_t>(length, 1000))};
}

NodePtr TreeBuilder::make(Node::Kind kind, const Location& where, YAML::anchor_t anchor) {
  auto node = std::make_shared<Node>();
  node->kind = kind;
  node->where = where;
  if (anchor != 0) anchors_[anchor] = node;
  return node;
}

void TreeBuilder::check_tag(const std::string& tag, const Location& where) {
  // "?" is plain, "!" is quoted; anything else was written out.
  if (tag.empty() || tag == "?" || tag == "!") return;
  diagnostics_.error(where, "tags are not supported, found '" + tag + "'", "write the value without the tag");
}

std::string TreeBuilder::path_to(const std::string& key) const {
  std::string path;
  for (const Frame& frame : frames_)
    if (frame.member) path += frame.member->key + ".";
  return path + key;
}

void TreeBuilder::OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) {
  Location where = place(mark);
  // The mark of an absent value is that of the next token; the key is the better place.
  if (!frames_.empty() && frames_.back().member) where = frames_.back().member->key_where;
  place_node(make(Node::Kind::null, where, anchor));
}

void TreeBuilder::OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) {
  const auto found = anchors_.find(anchor);
  NodePtr node = found == anchors_.end() ? nullptr : found->second;
  for (const Frame& frame : frames_)
    if (frame.node == node) node = nullptr;
  if (!node) {
    diagnostics_.error(place(mark), "this alias refers to the node that it is part of");
    node = make(Node::Kind::null, place(mark), 0);
  }
  place_node(node);
}

void TreeBuilder::OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                           const std::string& value) {
  const bool quoted = tag == "!";
  const NodePtr node = make(Node::Kind::scalar, place(mark, value.size() + (quoted ? 2 : 0)), anchor);
  check_tag(tag, node->where);
  node->text = value;
  node->style = quoted ? ScalarStyle::quoted : ScalarStyle::plain;
  place_node(node);
}

void TreeBuilder::OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                                  YAML::EmitterStyle::value) {
  check_tag(tag, place(mark));
  open(make(Node::Kind::sequence, place(mark), anchor));
}

void TreeBuilder::OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                             YAML::EmitterStyle::value) {
  check_tag(tag, place(mark));
  open(make(Node::Kind::map, place(mark), anchor));
}

void TreeBuilder::open(const NodePtr& node) {
  if (frames_.size() >= max_depth) throw TooDeep{node->where};
  frames_.push_back({node, false, {}, std::nullopt});
}

void TreeBuilder::close() {
  const Frame frame = std::move(frames_.back());
  frames_.pop_back();
  place_node(frame.node);
}

// Puts a finished node where it belongs: the root, the next list item, a key or a key's value.
void TreeBuilder::place_node(const NodePtr& node) {
  if (frames_.empty()) {
    root_ = node;
    return;
  }
  Frame& frame = frames_.back();
  if (frame.node->kind == Node::Kind::sequence) {
    frame.node->items.push_back(node);
  } else if (!frame.expects_value) {
    take_key(frame, *node);
    frame.expects_value = true;
  } else {
    if (frame.member) {
      frame.member->value = node;
      frame.node->members.push_back(std::move(*frame.member));
    }
    frame.member.reset();
    frame.expects_value = false;
  }
}

void TreeBuilder::take_key(Frame& frame, const Node& node) {
  frame.member.reset();
  if (node.kind != Node::Kind::scalar) {
    diagnostics_.error(node.where, "a key must be plain text");
    return;
  }
  if (node.text == "<<") {
    diagnostics_.error(node.where, "merge keys ('<<') are not supported",
                       "write the keys out, or give several files");
    return;
  }
  const auto [first, is_new] = frame.keys.emplace(node.text, node.where);
  if (!is_new) {
    diagnostics_.error(node.where,
                       "duplicate key '" + path_to(node.text) + "', first set at " + describe(first->second),
                       "remove one of the two");
    return;
  }
  frame.member = Node::Member{node.text, node.where, nullptr};
}

}  // namespace deltaport::config
