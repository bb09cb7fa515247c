// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/tokenizer.hpp"

#include "data/checksum.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode(text, ids);
  return ids;
}

std::string Tokenizer::decode_bytes(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) append_bytes(id, bytes);
  return bytes;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  return replace_ill_formed(decode_bytes(ids));
}

std::string ByteTokenizer::hash() const {
  Checksum checksum;
  checksum.add(std::string_view("byte tokenizer: id = byte, 256 = end of document"));
  return checksum.hex();
}

void ByteTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t begin = ids.size();
  ids.resize(begin + text.size());
  for (std::size_t i = 0; i < text.size(); ++i) ids[begin + i] = static_cast<unsigned char>(text[i]);
}

std::size_t ByteTokenizer::encode_front(std::string_view text, std::vector<std::int32_t>& ids) const {
  encode(text, ids);
  return text.size();
}

void ByteTokenizer::append_bytes(std::int32_t id, std::string& bytes) const {
  if (id >= 0 && id < 256)
    bytes += static_cast<char>(static_cast<unsigned char>(id));
  else if (id != end_of_document())
    bytes += "\xEF\xBF\xBD";
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  DELTAPORT_VALIDATE(name == "byte", DataError, "unknown tokenizer \"", name, "\"; there is \"byte\"");
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerFile& file) {
  if (file.path == "byte") return std::make_unique<ByteTokenizer>();
  return read_tokenizer(file);
}

}  // namespace deltaport
