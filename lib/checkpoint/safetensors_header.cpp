// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "checkpoint/file_system.hpp"

namespace deltaport::safetensors {

namespace {

using nlohmann::json;

/// Follows the parser's events through the only nesting the format knows: {"name": {"key": value or
/// [numbers]}}. Event-driven, because a document tree would drop all but one of several equal names.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  HeaderEvents(Header& header, const std::string& file, FileOrigin origin)
      : header_(header), file_(file), origin_(origin) {}

  bool start_object(std::size_t) override {
    if (depth_ == 2 || in_array_) fail("an object where a value belongs");
    if (++depth_ == 2) begin_entry();
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2) end_entry();
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      entry_name_ = name;
      if (!seen_.insert(name).second) fail("the name appears twice");
      return true;
    }
    field_ = name;
    if (!fields_.insert(name).second) fail(concat("the key \"", name, "\" appears twice"));
    if (!in_metadata() && name != "dtype" && name != "shape" && name != "data_offsets")
      fail(concat("unknown key \"", name, "\"; known are dtype, shape and data_offsets"));
    return true;
  }
  bool string(std::string& value) override {
    if (depth_ != 2 || in_array_) fail("a string where it does not belong");
    if (in_metadata()) {
      header_.metadata[field_] = value;
    } else if (field_ == "dtype") {
      const auto dtype = parse_file_dtype(value);
      if (!dtype) fail(concat("unknown dtype \"", value, "\""));
      entry_.dtype = *dtype;
    } else {
      fail(concat("\"", field_, "\" must be a list of integers"));
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata() || field_ == "dtype")
      fail("a list where it does not belong");
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!in_array_) fail(concat("a number as \"", field_, "\""));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      fail(concat("overflow: ", value, " in \"", field_, "\""));
    if (field_ == "shape") {
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else {
      offsets_.push_back(value);
    }
    return true;
  }
  bool number_integer(std::int64_t value) override {
    fail(concat("negative number ", value, " in \"", field_, "\""));
  }
  bool number_float(double, const std::string& text) override {
    fail(concat("\"", field_, "\" holds ", text.substr(0, 40),
                ", which is not an integer or overflows 64 bits"));
  }
  bool null() override { fail("null where a value belongs"); }
  bool boolean(bool) override { fail("true or false where a value belongs"); }
  bool binary(json::binary_t&) override { fail("binary value"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string reason = e.what();
    reason.resize(std::min({reason.size(), reason.find("; last read"), std::size_t{200}}));
    files::raise(origin_,
                 concat(file_, ": header is not valid JSON at byte ", length_bytes + position, ": ", reason));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const std::string where =
        entry_name_.empty() ? std::string("header") : concat("tensor \"", entry_name_, "\"");
    files::raise(origin_, concat(file_, ": ", where, ": ", what));
  }
  bool in_metadata() const { return entry_name_ == "__metadata__"; }

  void begin_entry() {
    entry_ = TensorEntry{};
    offsets_.clear();
    fields_.clear();
  }
  void end_entry() {
    if (!in_metadata()) {
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (!fields_.count(field)) fail(concat("\"", field, "\" is missing"));
      if (offsets_.size() != 2) fail(concat("data_offsets must be two numbers, not ", offsets_.size()));
      entry_.name = entry_name_;
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
      header_.tensors.push_back(entry_);
    }
    entry_name_.clear();
  }

  Header& header_;
  const std::string& file_;
  FileOrigin origin_;
  int depth_ = 0;
  bool in_array_ = false;
  std::string entry_name_;
  std::string field_;
  TensorEntry entry_;
  std::vector<std::uint64_t> offsets_;
  std::set<std::string> seen_;
  std::set<std::string> fields_;
};

void check_layout(const Header& header, std::uint64_t data_bytes, const std::string& file,
                  FileOrigin origin) {
  std::uint64_t next = 0;
  for (const TensorEntry& t : header.tensors) {
    const std::string where = concat(file, ": tensor \"", t.name, "\" [", t.begin, ", ", t.end, "): ");
    if (t.end < t.begin) files::raise(origin, where + "data_offsets end before they begin");
    if (t.begin > next) files::raise(origin, concat(where, "hole in the data before it, from byte ", next));
    if (t.begin < next)
      files::raise(origin, concat(where, "overlaps the tensor before it, which ends at ", next));
    std::uint64_t bytes = 0;
    if (!checked_bytes(t.dtype, t.shape, bytes))
      files::raise(origin, concat(where, "size overflows or leaves part of a byte: shape ", t.shape_string(),
                                  " of ", name_of(t.dtype)));
    if (t.end - t.begin != bytes)
      files::raise(origin, concat(where, "shape ", t.shape_string(), " of ", name_of(t.dtype), " needs ",
                                  bytes, " bytes, data_offsets give ", t.end - t.begin));
    next = t.end;
  }
  if (next > data_bytes)
    files::raise(origin, concat(file, ": truncated: tensors need ", next, " bytes of data, the file has ",
                                data_bytes));
  if (next < data_bytes)
    files::raise(origin,
                 concat(file, ": ", data_bytes - next, " bytes after the last tensor belong to none"));
}

}  // namespace

bool checked_bytes(FileDtype dtype, const std::vector<std::int64_t>& shape, std::uint64_t& bytes) {
  std::int64_t product = 1;
  for (std::int64_t extent : shape)
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return false;
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(product, std::int64_t{bits_of(dtype)}, &bits) || bits % 8 != 0) return false;
  bytes = static_cast<std::uint64_t>(bits / 8);
  return true;
}

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& file,
                    FileOrigin origin) {
  if (text.empty() || text.front() != '{')
    files::raise(origin, file + ": header does not start with '{' at byte 8");
  // The parser would take a zero byte for the end of its input.
  const auto zero = text.find('\0');
  if (zero != std::string_view::npos)
    files::raise(origin, concat(file, ": header is not valid JSON: zero byte at byte ", length_bytes + zero));
  Header header;
  HeaderEvents events(header, file, origin);
  json::sax_parse(text.begin(), text.end(), &events);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  check_layout(header, data_bytes, file, origin);
  return header;
}

std::string format_header(const Header& header, FileOrigin origin) {
  try {
    std::ostringstream out;
    out << "{\"__metadata__\":" << json(header.metadata).dump();
    for (const TensorEntry& t : header.tensors)
      out << ',' << json(t.name).dump() << ":{\"dtype\":\"" << name_of(t.dtype)
          << "\",\"shape\":" << json(t.shape).dump() << ",\"data_offsets\":[" << t.begin << ',' << t.end
          << "]}";
    out << '}';
    std::string text = out.str();
    text.append((8 - text.size() % 8) % 8, ' ');
    return text;
  } catch (const json::exception& e) {
    files::raise(origin, concat("safetensors header: a name or metadata string is not UTF-8: ", e.what()));
  }
}

}  // namespace deltaport::safetensors
