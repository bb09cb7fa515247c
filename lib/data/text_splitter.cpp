// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/text_splitter.hpp"

#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

constexpr std::string_view space_class =
    R"(\t\n\x0b\f\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Escapes that PCRE2 and the engine that tokenizers use read differently, that cut inside of characters (\C),
// or that move where a match begins (\K, \G).
constexpr std::string_view read_otherwise = "hHCEGKQ";

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(error, text, sizeof text) < 0
             ? concat("error ", error)
             : std::string(reinterpret_cast<const char*>(text));
}

utf8proc_option_t options_of(Normalization form) {
  switch (form) {
    case Normalization::nfd:
      return UTF8PROC_DECOMPOSE;
    case Normalization::nfkc:
      return static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Normalization::nfkd:
      return static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    default:
      return UTF8PROC_COMPOSE;
  }
}

struct Range {
  std::uint32_t first, last;
};
// Characters of combining class 0 that are their own NFC and join with none before them: text of these alone
// is in normal form, and so is what is put together of such texts. Whole scripts of much text, not all there
// are; in order.
constexpr Range inert[] = {{0x0080, 0x02FF}, {0x0370, 0x0373}, {0x0388, 0x0482}, {0x048A, 0x058F},
                           {0x05D0, 0x05F4}, {0x0620, 0x064A}, {0x0660, 0x066F}, {0x0671, 0x06D5},
                           {0x0904, 0x0939}, {0x093D, 0x094C}, {0x0E01, 0x0E37}, {0x0E3F, 0x0E47},
                           {0x1E00, 0x1EFF}, {0x2002, 0x2027}, {0x2030, 0x205E}, {0x20A0, 0x20C0},
                           {0x2190, 0x2328}, {0x232B, 0x2ADB}, {0x3001, 0x3029}, {0x3041, 0x3096},
                           {0x309D, 0x30FF}, {0x3131, 0x318E}, {0x31F0, 0x4DBF}, {0x4E00, 0xA48C},
                           {0xAC00, 0xD7A3}, {0xFE00, 0xFE0F}, {0xFF01, 0xFF60}, {0x1F300, 0x1FAFF}};

utf8proc_propval_t combining_class(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// Each character taken apart, marks in the order in which they come.
void decompose(std::string_view text, utf8proc_option_t options, std::vector<utf8proc_int32_t>& characters) {
  constexpr utf8proc_ssize_t longest = 32;  // of any character's parts: 18
  characters.reserve(text.size() + 1);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = 0, parts[longest];
    const utf8proc_ssize_t size =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    DELTAPORT_VALIDATE(size > 0, DataError, "normalisation failed: ", utf8proc_errmsg(size));
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(character, parts, longest, options, &boundary);
    DELTAPORT_VALIDATE(count >= 0 && count <= longest, DataError, "normalisation failed: ",
                       count < 0 ? utf8proc_errmsg(count) : "a character with too many parts");
    characters.insert(characters.end(), parts, parts + count);
    at += static_cast<std::size_t>(size);
  }
}

// Runs of marks sorted by combining class, those of one class as they came. utf8proc_decompose() exchanges
// neighbours instead, which takes half a minute for a run of 40,000.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  const auto before = [](utf8proc_int32_t a, utf8proc_int32_t b) {
    return combining_class(a) < combining_class(b);
  };
  for (auto from = characters.begin(); from != characters.end();) {
    from = std::find_if(from, characters.end(), is_mark);
    const auto to = std::find_if_not(from, characters.end(), is_mark);
    if (!std::is_sorted(from, to, before)) std::stable_sort(from, to, before);
    from = to;
  }
}

bool is_inert(std::uint32_t character) {
  for (const Range& range : inert)
    if (character <= range.last) return character >= range.first;
  return false;
}

}  // namespace

bool is_surely_normalized(std::string_view text, Normalization form) {
  if (form == Normalization::none) return true;
  for (std::size_t i = 0; i < text.size();) {
    std::uint64_t eight = 0;
    if (i + 8 <= text.size()) std::memcpy(&eight, text.data() + i, 8);
    if (i + 8 <= text.size() && (eight & 0x8080808080808080ull) == 0) {
      i += 8;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      ++i;
      continue;
    }
    if (form != Normalization::nfc) return false;
    const int length = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    std::uint32_t character = byte & (0xFFu >> (length + 1));
    for (int k = 1; k < length; ++k)
      character = character << 6 | (static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 0x3F);
    if (!is_inert(character)) return false;
    i += static_cast<std::size_t>(length);
  }
  return true;
}

void append_normalized(std::string_view text, Normalization form, std::string& out) {
  if (is_surely_normalized(text, form)) {
    out += text;
    return;
  }
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options_of(form));
  std::vector<utf8proc_int32_t> characters;
  decompose(text, options, characters);
  order_marks(characters);
  const auto count = static_cast<utf8proc_ssize_t>(characters.size());
  characters.push_back(0);  // a byte that utf8proc writes behind the text
  const utf8proc_ssize_t size = utf8proc_reencode(characters.data(), count, options);
  DELTAPORT_VALIDATE(size >= 0, DataError, "normalisation failed: ", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(characters.data()), static_cast<std::size_t>(size));
}

std::string with_explicit_space(const std::string& pattern) {
  std::string out;
  int depth = 0;  // of brackets
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      DELTAPORT_VALIDATE(!(next == 'S' && depth > 0) && read_otherwise.find(next) == read_otherwise.npos,
                         DataError, "\\", next, depth > 0 ? " inside brackets" : "",
                         " is not known in a tokenizer's pattern");
      if (next == 's')
        out += depth > 0 ? std::string(space_class) : concat("[", space_class, "]");
      else if (next == 'S')
        out += concat("[^", space_class, "]");
      else
        out += {c, next};
      continue;
    }
    DELTAPORT_VALIDATE(!(c == '[' && depth > 0), DataError,
                       "brackets inside brackets are not known in a tokenizer's pattern");
    DELTAPORT_VALIDATE(!(c == '(' && depth == 0 && i + 1 < pattern.size() && pattern[i + 1] == '*'),
                       DataError, "(* is not known in a tokenizer's pattern");
    if (c == '[') {
      depth = 1;
      out += c;
      // A bracket that stands first is a character.
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
      continue;
    }
    if (c == ']') depth = 0;
    out += c;
  }
  return out;
}

struct TextSplitter::Impl {
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct Code {
    std::unique_ptr<pcre2_code, Free> code;
    bool compiled = false;  // to machine code
  };
  std::vector<Code> codes;

  struct Space final : Workspace {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_jit_stack* stack = pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{8} << 20, nullptr);
    Space() {
      if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    }
    ~Space() override {
      pcre2_jit_stack_free(stack);
      pcre2_match_context_free(context);
      pcre2_match_data_free(data);
    }
  };
};

TextSplitter::TextSplitter(const std::vector<std::string>& patterns, const std::string& path)
    : impl_(std::make_unique<Impl>()), count_(patterns.size()) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  for (const std::string& pattern : patterns) {
    std::string rewritten, problem;
    try {
      rewritten = with_explicit_space(pattern);
    } catch (const DataError& e) {
      problem = e.what();
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = nullptr;
    if (problem.empty())
      code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                           PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context);
    if (problem.empty() && code == nullptr)
      problem = concat(message_of(error), " at byte ", offset, " of ", rewritten);
    if (!problem.empty()) pcre2_compile_context_free(context);
    DELTAPORT_VALIDATE(problem.empty(), DataError, path, ": pattern ", pattern, ": ", problem);
    impl_->codes.push_back(
        {std::unique_ptr<pcre2_code, Impl::Free>(code), pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0});
  }
  pcre2_compile_context_free(context);
}

TextSplitter::~TextSplitter() = default;

std::unique_ptr<TextSplitter::Workspace> TextSplitter::make_workspace() const {
  return std::make_unique<Impl::Space>();
}

bool TextSplitter::next_match(Workspace& workspace, std::size_t level, std::string_view text,
                              std::size_t from, Match& match) const {
  const auto& space = static_cast<Impl::Space&>(workspace);
  const Impl::Code& code = impl_->codes[level];
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  while (from < text.size()) {
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (code.compiled)
      found = pcre2_jit_match(code.code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, space.data,
                              space.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code.code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          space.data, nullptr);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    DELTAPORT_VALIDATE(found >= 0, DataError, "a tokenizer's pattern fails on the text: ", message_of(found));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(space.data);
    match = {bounds[0], bounds[1]};
    if (match.end > match.begin) return true;
    // A match of nothing cuts nothing: go on behind the next character.
    for (from = match.end + 1; from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80;)
      ++from;
  }
  return false;
}

}  // namespace deltaport
