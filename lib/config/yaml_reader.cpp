// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "config/node.hpp"
#include "config/tree_builder.hpp"

namespace deltaport::config {
namespace {

constexpr std::uintmax_t max_file_bytes = 1 << 20;

// Length of the well-formed UTF-8 sequence at `i`, or 0.
std::size_t character_bytes(const std::string& text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  const auto follows = [&](std::size_t k) { return (byte(k) & 0xC0) == 0x80; };
  const unsigned first = byte(i);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return follows(i + 1) ? 2 : 0;
  if ((first & 0xF0) == 0xE0) {
    const bool overlong = first == 0xE0 && byte(i + 1) < 0xA0;
    const bool surrogate = first == 0xED && byte(i + 1) >= 0xA0;
    return follows(i + 1) && follows(i + 2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first < 0xF5) {
    const bool outside = (first == 0xF0 && byte(i + 1) < 0x90) || (first == 0xF4 && byte(i + 1) >= 0x90);
    return follows(i + 1) && follows(i + 2) && follows(i + 3) && !outside ? 4 : 0;
  }
  return 0;
}

}  // namespace

// yaml-cpp stops without a word at some control bytes, so they are refused first.
bool check_text(const std::string& text, Location at, Diagnostics& diagnostics) {
  std::size_t line_begin = 0;
  at.line = 1;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = character_bytes(text, i);
    const bool control = (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
    if (bytes == 0 || control) {
      at.column = static_cast<int>(i - line_begin) + 1;
      const std::string number = std::to_string(c);
      diagnostics.error(at, control ? "control character (byte " + number + "): is this a text file?"
                                    : "byte " + number + " is not UTF-8 text");
      return false;
    }
    if (c == '\n') {
      ++at.line;
      line_begin = i + 1;
    }
    i += bytes;
  }
  return true;
}

namespace {

std::string line_of(const std::string& text, int line) {
  std::istringstream in(text);
  std::string result;
  for (int i = 0; i <= line && std::getline(in, result);) ++i;
  return result;
}

// ${a} outside quotes ends a flow map at its brace: the most likely reason for an error on such a line.
std::string syntax_hint(const std::string& text, int line) {
  const std::string content = line_of(text, line);
  if (content.find("${") != std::string::npos) return "values with ${...} need quotes inside { } and [ ]";
  if (content.find('\t') != std::string::npos) return "indent with spaces, not tabs";
  return "";
}

void report_syntax(const std::string& text, const YAML::Exception& e, Location where,
                   Diagnostics& diagnostics) {
  std::string message = e.msg;
  if (message == "illegal map value") message = "a second ':' on one line, or wrong indentation";
  if (!e.mark.is_null()) {
    where.line = e.mark.line + 1;
    where.column = e.mark.column + 1;
  }
  diagnostics.error(where, "not valid YAML: " + message, syntax_hint(text, e.mark.line));
}

void set_place(Node& node, const Location& where) {
  if (node.where.line == 0) return;  // an alias, seen already
  node.where = where;
  for (const NodePtr& item : node.items) set_place(*item, where);
  for (Node::Member& member : node.members) {
    member.key_where = where;
    set_place(*member.value, where);
  }
}

}  // namespace

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return "nothing";
    case Node::Kind::sequence:
      return "a list";
    case Node::Kind::map:
      return "a section";
    case Node::Kind::scalar:
      break;
  }
  const std::string shown = node.text.size() > 60 ? node.text.substr(0, 57) + "..." : node.text;
  return (node.style == ScalarStyle::quoted ? "the quoted text '" : "'") + shown + "'";
}

NodePtr parse_yaml(const std::string& text, const std::string& name, Diagnostics& diagnostics) {
  TreeBuilder builder(name, diagnostics);
  const Location start{name, diagnostics.order_of(name), 0, 0, 1};
  if (!check_text(text, start, diagnostics)) return nullptr;
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(builder)) return nullptr;
    const NodePtr root = builder.root();
    TreeBuilder rest(name, diagnostics);
    if (parser.HandleNextDocument(rest))
      diagnostics.error(rest.document_start(), "text after the end of the document: one document per file");
    return root;
  } catch (const YAML::Exception& e) {
    report_syntax(text, e, start, diagnostics);
  } catch (const TooDeep& e) {
    diagnostics.error(e.where, "nested too deeply");
  } catch (const std::exception& e) {
    diagnostics.error(start, std::string("not valid YAML: ") + e.what());
  }
  return nullptr;
}

NodePtr parse_inline_value(const std::string& text, const Location& where, Diagnostics& diagnostics) {
  Diagnostics own;
  own.add_source(where.source, text);
  NodePtr node = parse_yaml(text, where.source, own);
  if (own.failed()) {
    const std::string report = own.report(1);
    const std::size_t begin = report.find(": error: ");
    diagnostics.error(where, report.substr(begin + 9, report.find('\n', begin) - begin - 9));
    return nullptr;
  }
  if (!node) {  // no text: nothing that set_place() would take for its own
    node = std::make_shared<Node>();
    node->where = where;
  }
  set_place(*node, where);
  return node;
}

bool read_file(const std::string& path, std::string& text, Diagnostics& diagnostics) {
  namespace fs = std::filesystem;
  const Location where{path, diagnostics.order_of(path), 0, 0, 1};
  std::error_code failure;
  const fs::file_status status = fs::status(path, failure);
  if (!fs::exists(status)) {
    diagnostics.error(where, "no such file");
    return false;
  }
  if (fs::is_directory(status)) {
    diagnostics.error(where, "is a directory, not a YAML file");
    return false;
  }
  std::ifstream in(path, std::ios::binary);
  text.clear();
  // Not file_size(): pipes have none.
  for (char block[4096]; in && text.size() <= max_file_bytes;) {
    in.read(block, sizeof block);
    text.append(block, static_cast<std::size_t>(in.gcount()));
  }
  if (!in.eof() && text.size() <= max_file_bytes) {
    diagnostics.error(where, std::string("cannot be read: ") + std::strerror(errno));
    return false;
  }
  if (text.size() > max_file_bytes) {
    diagnostics.error(where, "is larger than 1 MiB: not a configuration");
    return false;
  }
  return true;
}

}  // namespace deltaport::config
