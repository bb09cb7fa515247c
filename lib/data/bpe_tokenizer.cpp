// SPDX-License-Identifier: Apache-2.0
#include "data/bpe_tokenizer.hpp"

#include <algorithm>

#include "deltaport/core/error.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport {
namespace {

std::vector<AddedToken> looked_for(const BpeFile& file, SpecialTokens special_tokens, bool normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : file.added)
    if (token.normalized == normalized && !(token.special && special_tokens == SpecialTokens::as_text))
      tokens.push_back(token);
  return tokens;
}

bool is_ascii_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

}  // namespace

/// A scratch for the time of one call.
class BpeTokenizer::Lease {
 public:
  explicit Lease(const BpeTokenizer& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner.mutex_);
      if (!owner.idle_.empty()) {
        scratch_ = std::move(owner.idle_.back());
        owner.idle_.pop_back();
      }
    }
    if (scratch_) return;
    scratch_ = std::make_unique<Scratch>();
    scratch_->workspace = owner.splitter_.make_workspace();
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() const { return *scratch_; }

 private:
  const BpeTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

BpeTokenizer::BpeTokenizer(const BpeFile& file, std::string hash, std::int32_t end_of_document,
                           SpecialTokens special_tokens, const std::string& path)
    : hash_(std::move(hash)),
      end_of_document_(end_of_document),
      normalization_(file.normalization),
      raw_tokens_(looked_for(file, special_tokens, false)),
      normalized_tokens_(looked_for(file, special_tokens, true)),
      splitter_(file.patterns, path),
      merger_(file) {
  for (const std::string& token : file.tokens) {
    offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    bytes_ += token;
  }
  offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
}

void BpeTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const Lease lease(*this);
  encode_until(*lease, text, no_stop, ids);
}

// A line that begins with an ASCII letter or digit: nothing before it joins with it in normalisation. Whether
// a piece begins there as well is seen with the text behind it in view.
std::size_t BpeTokenizer::encode_front(std::string_view text, std::vector<std::int32_t>& ids) const {
  constexpr std::size_t view_bytes = 512;
  const std::size_t behind =
      view_bytes + std::max(raw_tokens_.longest_bytes(), normalized_tokens_.longest_bytes());
  if (text.size() <= behind) return 0;
  const Lease lease(*this);
  const std::size_t before = ids.size();
  int tries = 0;
  for (std::size_t stop = text.size() - behind; stop > 0 && tries < 8; --stop) {
    if (text[stop - 1] != '\n' || !is_ascii_alphanumeric(text[stop])) continue;
    if (encode_until(*lease, text, stop, ids)) return stop;
    ids.resize(before);
    ++tries;
  }
  return 0;
}

bool BpeTokenizer::encode_until(Scratch& scratch, std::string_view text, std::size_t stop,
                                std::vector<std::int32_t>& ids) const {
  std::size_t done = 0;
  for (AddedTokenFinder::Found found{}; done < stop && raw_tokens_.find(text, done, found);
       done = found.end) {
    if (found.begin >= stop) break;
    if (!encode_raw(scratch, text.substr(done, found.begin - done), no_stop, ids)) return false;
    ids.push_back(found.id);
  }
  if (stop == no_stop) return encode_raw(scratch, text.substr(done), no_stop, ids);
  if (done >= stop) return done == stop;
  AddedTokenFinder::Found next{};
  const std::size_t end = raw_tokens_.find(text, done, next) ? next.begin : text.size();
  return encode_raw(scratch, text.substr(done, end - done), stop - done, ids);
}

bool BpeTokenizer::encode_raw(Scratch& scratch, std::string_view text, std::size_t stop,
                              std::vector<std::int32_t>& ids) const {
  while (!text.empty() && stop > 0) {
    const std::size_t run = well_formed_prefix(text);
    if (run > 0 && !encode_run(scratch, text.substr(0, run), stop < run ? stop : no_stop, ids)) return false;
    if (stop <= run) return true;
    std::size_t ill = 0;  // up to the next well-formed character
    while (run + ill < text.size() && well_formed_prefix(text.substr(run + ill, 4)) == 0) ++ill;
    if (ill > 0) merger_.encode(text.substr(run, ill), scratch.cache, ids);
    text.remove_prefix(run + ill);
    if (stop != no_stop) stop -= std::min(stop, run + ill);
  }
  return true;
}

bool BpeTokenizer::encode_run(Scratch& scratch, std::string_view text, std::size_t stop,
                              std::vector<std::int32_t>& ids) const {
  if (!is_surely_normalized(text, normalization_)) {
    std::string& normal = scratch.normalized;
    normal.clear();
    append_normalized(text.substr(0, stop), normalization_, normal);
    if (stop != no_stop) {
      const std::size_t at = normal.size();
      append_normalized(text.substr(stop), normalization_, normal);
      stop = at;
    }
    text = normal;
  }
  std::size_t done = 0;
  for (AddedTokenFinder::Found found{}; normalized_tokens_.find(text, done, found); done = found.end) {
    if (stop != no_stop && found.begin >= stop) break;
    if (!encode_pieces(scratch, text.substr(done, found.begin - done), no_stop, ids)) return false;
    ids.push_back(found.id);
  }
  if (stop == no_stop) return encode_pieces(scratch, text.substr(done), no_stop, ids);
  if (done >= stop) return done == stop;
  AddedTokenFinder::Found next{};
  const std::size_t end = normalized_tokens_.find(text, done, next) ? next.begin : text.size();
  return encode_pieces(scratch, text.substr(done, end - done), stop - done, ids);
}

bool BpeTokenizer::encode_pieces(Scratch& scratch, std::string_view text, std::size_t stop,
                                 std::vector<std::int32_t>& ids) const {
  bool begins_there = stop == no_stop || stop == text.size();
  splitter_.split(*scratch.workspace, text, [&](std::string_view piece) {
    const auto begin = static_cast<std::size_t>(piece.data() - text.data());
    if (begin >= stop) {
      begins_there = begin == stop;
      return false;
    }
    merger_.encode(piece, scratch.cache, ids);
    return true;
  });
  return begins_there;
}

void BpeTokenizer::append_bytes(std::int32_t id, std::string& bytes) const {
  if (id == end_of_document_) return;
  if (id < 0 || id >= vocab_size()) {
    bytes += "\xEF\xBF\xBD";
    return;
  }
  const auto i = static_cast<std::size_t>(id);
  bytes.append(bytes_, offsets_[i], offsets_[i + 1] - offsets_[i]);
}

}  // namespace deltaport
