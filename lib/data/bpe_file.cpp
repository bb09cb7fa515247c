// SPDX-License-Identifier: Apache-2.0
#include "data/bpe_file.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "core/json_depth.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

using nlohmann::json;

constexpr std::int64_t most_ids = std::int64_t{1} << 24;
// The pattern of GPT-2, which "use_regex" stands for.
constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Byte-level vocabularies write each byte as a visible character: printable Latin-1 as itself, the rest in
/// order from U+0100 on.
class ByteLetters {
 public:
  ByteLetters() {
    std::uint32_t next = 0x100;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const std::uint32_t letter = printable ? b : next++;
      byte_of_[letter] = static_cast<int>(b) + 1;
    }
  }
  /// The bytes that a token's letters stand for; nothing when one stands for none.
  std::optional<std::string> bytes(const std::string& letters) const {
    std::string out;
    for (std::size_t i = 0; i < letters.size(); ++i) {
      std::uint32_t letter = static_cast<unsigned char>(letters[i]);
      if (letter >= 0x80) {  // all letters are below U+0800: two bytes
        if (i + 1 == letters.size() || letter < 0xC2 || letter > 0xDF) return std::nullopt;
        letter = (letter & 0x1F) << 6 | (static_cast<unsigned char>(letters[++i]) & 0x3F);
      }
      if (letter >= byte_of_.size() || byte_of_[letter] == 0) return std::nullopt;
      out += static_cast<char>(static_cast<unsigned char>(byte_of_[letter] - 1));
    }
    return out;
  }

 private:
  std::array<int, 0x200> byte_of_{};
};

class Reader {
 public:
  Reader(const json& top, const std::string& path) : top_(top), path_(path) {}

  BpeFile read() {
    DELTAPORT_VALIDATE(top_.is_object(), DataError, path_, ": an object is needed");
    read_normalizer(part("normalizer"));
    read_pre_tokenizer(part("pre_tokenizer"));
    if (!byte_level_) problem("pre_tokenizer: a part of type ByteLevel is needed");
    read_decoder();
    read_model(part("model"));
    if (problems_.empty()) read_added_tokens(part("added_tokens"));
    std::string all;
    for (const std::string& each : problems_) all += "\n  " + each;
    DELTAPORT_VALIDATE(problems_.empty(), DataError, path_,
                       ": not a byte-level BPE that deltaport can compute:", all);
    return std::move(file_);
  }

 private:
  void problem(const std::string& text) { problems_.push_back(text); }
  const json& part(const char* key) const {
    static const json none;
    const auto found = top_.find(key);
    return found == top_.end() ? none : *found;
  }
  static std::string type_of(const json& part) {
    return part.is_object() && part.contains("type") && part["type"].is_string()
               ? part["type"].get<std::string>()
               : "";
  }
  /// A key that may be absent or null, or has the one value that is understood.
  void only(const json& object, const char* where, const char* key, const json& allowed) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null() || *found == allowed) return;
    problem(concat(where, ".", key, ": ", found->dump(), "; only ", allowed.dump(), " is known"));
  }

  void read_normalizer(const json& part) {
    if (part.is_null()) return;
    const std::string type = type_of(part);
    if (type == "Sequence" && part.contains("normalizers") && part["normalizers"].is_array()) {
      for (const json& each : part["normalizers"]) read_normalizer(each);
      return;
    }
    const std::pair<const char*, Normalization> known[] = {{"NFC", Normalization::nfc},
                                                           {"NFD", Normalization::nfd},
                                                           {"NFKC", Normalization::nfkc},
                                                           {"NFKD", Normalization::nfkd}};
    for (const auto& [name, value] : known)
      if (type == name && file_.normalization == Normalization::none) {
        file_.normalization = value;
        return;
      }
    problem(concat("normalizer: ", part.dump().substr(0, 80), "; one of NFC, NFD, NFKC and NFKD is known"));
  }

  void read_pre_tokenizer(const json& part) {
    const std::string type = type_of(part);
    if (type == "Sequence" && part.contains("pretokenizers") && part["pretokenizers"].is_array()) {
      for (const json& each : part["pretokenizers"]) read_pre_tokenizer(each);
    } else if (type == "Split") {
      read_split(part);
    } else if (type == "ByteLevel") {
      only(part, "pre_tokenizer", "add_prefix_space", false);
      if (byte_level_) problem("pre_tokenizer: ByteLevel twice");
      byte_level_ = true;
      if (part.value("use_regex", true)) file_.patterns.emplace_back(gpt2_pattern);
    } else {
      problem(
          concat("pre_tokenizer: ", part.dump().substr(0, 80), "; Sequence, Split and ByteLevel are known"));
    }
  }

  void read_split(const json& part) {
    only(part, "pre_tokenizer", "behavior", "Isolated");
    only(part, "pre_tokenizer", "invert", false);
    if (byte_level_) problem("pre_tokenizer: Split after ByteLevel would see letters in place of bytes");
    const json pattern = part.value("pattern", json());
    if (pattern.is_object() && pattern.contains("Regex") && pattern["Regex"].is_string())
      file_.patterns.push_back(pattern["Regex"].get<std::string>());
    else if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string())
      file_.patterns.push_back(quoted(pattern["String"].get<std::string>()));
    else
      problem(
          concat("pre_tokenizer.pattern: ", pattern.dump().substr(0, 80), "; Regex and String are known"));
  }
  static std::string quoted(const std::string& text) {
    std::string out;
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0)
        out += '\\';
      out += c;
    }
    return out;
  }

  void read_decoder() {
    const json& decoder = part("decoder");
    if (!decoder.is_null() && type_of(decoder) != "ByteLevel")
      problem(concat("decoder: ", decoder.dump().substr(0, 80), "; ByteLevel is known"));
  }

  void read_model(const json& model) {
    if (type_of(model) != "BPE" && !(model.is_object() && !model.contains("type")))
      return problem(concat("model.type: \"", type_of(model), "\"; BPE is known"));
    only(model, "model", "continuing_subword_prefix", "");
    only(model, "model", "end_of_word_suffix", "");
    only(model, "model", "byte_fallback", false);
    only(model, "model", "dropout", 0.0);
    file_.ignore_merges =
        model.value("ignore_merges", json()).is_boolean() && model["ignore_merges"].get<bool>();
    if (!model.contains("vocab") || !model["vocab"].is_object()) return problem("model.vocab: missing");
    if (!model.contains("merges") || !model["merges"].is_array()) return problem("model.merges: missing");
    read_vocabulary(model["vocab"]);
    read_merges(model["merges"]);
  }

  void read_vocabulary(const json& vocabulary) {
    const ByteLetters letters;
    file_.byte_id.assign(256, -1);
    for (const auto& [token, id] : vocabulary.items()) {
      if (!id.is_number_integer() || id < 0 || id >= most_ids)
        return problem(concat("model.vocab: \"", token, "\": ", id.dump(), " is no id"));
      const auto number = id.get<std::int32_t>();
      std::string& bytes = slot(number);
      if (!bytes.empty()) return problem(concat("model.vocab: id ", number, " appears twice"));
      bytes = letters.bytes(token).value_or(token);
      if (bytes.size() == 1 && letters.bytes(token))
        file_.byte_id[static_cast<unsigned char>(bytes[0])] = number;
      ids_.emplace(token, number);
    }
    int missing = 0;
    for (const std::int32_t id : file_.byte_id) missing += id < 0 ? 1 : 0;
    if (missing > 0) problem(concat("model.vocab: ", missing, " of the 256 bytes have no token"));
  }

  void read_merges(const json& merges) {
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const json& rule = merges[rank];
      std::string left, right;
      if (rule.is_string()) {
        const auto& text = rule.get_ref<const std::string&>();
        const std::size_t space = text.find(' ');
        left = text.substr(0, space);
        right = space == text.npos ? "" : text.substr(space + 1);
      } else if (rule.is_array() && rule.size() == 2 && rule[0].is_string() && rule[1].is_string()) {
        left = rule[0].get<std::string>();
        right = rule[1].get<std::string>();
      }
      const auto a = ids_.find(left), b = ids_.find(right), both = ids_.find(left + right);
      if (a == ids_.end() || b == ids_.end() || both == ids_.end())
        return problem(concat("model.merges: number ", rank, ", ", rule.dump().substr(0, 80),
                              ", is not two tokens that make a token"));
      file_.merges.push_back({a->second, b->second, both->second});
    }
  }

  void read_added_tokens(const json& list) {
    if (list.is_null()) return;
    if (!list.is_array()) return problem("added_tokens: a list is needed");
    for (const json& each : list) {
      const bool whole = each.is_object() && each.contains("content") && each["content"].is_string() &&
                         each.contains("id") && each["id"].is_number_integer() && each["id"] >= 0 &&
                         each["id"] < most_ids && !each["content"].get_ref<const std::string&>().empty();
      if (!whole)
        return problem(concat("added_tokens: ", each.dump().substr(0, 80), ": id and content are needed"));
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) only(each, "added_tokens", flag, false);
      AddedToken token{each["content"].get<std::string>(), each["id"].get<std::int32_t>(),
                       each.value("special", false), each.value("normalized", false)};
      check_id(token);
      slot(token.id) = token.text;
      file_.added.push_back(std::move(token));
    }
  }

  /// One id for one token: an added token may stand in the vocabulary too, but then with this id.
  void check_id(const AddedToken& token) {
    const auto known = ids_.emplace(token.text, token.id).first;
    if (known->second != token.id)
      problem(
          concat("added_tokens: \"", token.text, "\" has id ", token.id, ", but also id ", known->second));
    const std::string& taken = slot(token.id);
    if (known->second == token.id && !taken.empty() && taken != token.text && !in_vocabulary(token))
      problem(concat("added_tokens: \"", token.text, "\" has id ", token.id, ", which is that of \"", taken,
                     "\""));
  }
  /// Where letters stand for bytes, the vocabulary's entry need not look like its text.
  bool in_vocabulary(const AddedToken& token) const {
    const auto entry = top_["model"]["vocab"].find(token.text);
    return entry != top_["model"]["vocab"].end() && *entry == token.id;
  }

  std::string& slot(std::int32_t id) {
    if (static_cast<std::size_t>(id) >= file_.tokens.size())
      file_.tokens.resize(static_cast<std::size_t>(id) + 1);
    return file_.tokens[static_cast<std::size_t>(id)];
  }

  const json& top_;
  const std::string& path_;
  BpeFile file_;
  bool byte_level_ = false;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::string> problems_;
};

}  // namespace

BpeFile parse_bpe_file(const std::string& text, const std::string& path) {
  DELTAPORT_VALIDATE(!nests_too_deep(text), DataError, path, ": more than ", most_json_levels,
                     " arrays and objects inside each other");
  try {
    const json top = json::parse(text);
    return Reader(top, path).read();
  } catch (const json::exception& e) {
    throw DataError(concat(path, ": ", e.what()));
  }
}

}  // namespace deltaport
