// SPDX-License-Identifier: Apache-2.0
#include "data/json_text_field.hpp"

#include <nlohmann/json.hpp>

#include "deltaport/core/error.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport {
namespace {

using nlohmann::json;

/// Checks all of the line, keeps one string and builds no tree.
class TextField final : public nlohmann::json_sax<json> {
 public:
  TextField(const std::string& field, std::string& text) : field_(field), text_(text) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary data"); }
  bool start_array(std::size_t) override { return value("an array") && open(); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }

  bool start_object(std::size_t) override {
    if (depth_ > 0 && !value("an object")) return false;
    return open();
  }

  bool string(string_t& content) override {
    if (depth_ != 1 || !expected_) return value("a string");
    expected_ = false;
    if (found_) problem_ = concat("the field \"", field_, "\" comes twice");
    text_ = std::move(content);
    found_ = true;
    return problem_.empty();
  }

  bool key(string_t& name) override {
    if (depth_ == 1) expected_ = name == field_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text quotes what it read, which may be the whole line.
    constexpr std::size_t longest = 160;
    std::string_view text = error.what();
    text.remove_prefix(std::min(text.size(), text.find("] ") == text.npos ? 0 : text.find("] ") + 2));
    const std::string shown = escape_for_terminal(text.substr(0, longest));
    problem_ = concat("column ", position, ": invalid JSON: ", shown, text.size() > longest ? "..." : "");
    return false;
  }

  std::string problem() const {
    if (!problem_.empty() || found_) return problem_;
    return concat("no field \"", field_, "\"; choose the one that holds the text (--text-field)");
  }

 private:
  bool open() {
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  /// Any value that is not the wanted string.
  bool value(const char* kind) {
    if (depth_ == 0) problem_ = concat("expected an object with the field \"", field_, "\", found ", kind);
    if (depth_ == 1 && expected_)
      problem_ = concat("the field \"", field_, "\" is ", kind, "; expected a string");
    return problem_.empty();
  }

  const std::string& field_;
  std::string& text_;
  std::string problem_;
  std::size_t depth_ = 0;
  bool expected_ = false;  // the next value at depth 1 belongs to field_
  bool found_ = false;
};

}  // namespace

std::string json_text_field(std::string_view line, const std::string& field, std::string& text) {
  TextField handler(field, text);
  json::sax_parse(line.data(), line.data() + line.size(), &handler);
  return handler.problem();
}

}  // namespace deltaport
