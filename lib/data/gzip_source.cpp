// SPDX-License-Identifier: Apache-2.0
#include "data/gzip_source.hpp"

#include "deltaport/core/error.hpp"

#ifdef DELTAPORT_HAVE_ZLIB
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <vector>
#endif

namespace deltaport {

#ifdef DELTAPORT_HAVE_ZLIB
namespace {

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(RawFile file) : file_(std::move(file)), input_(input_bytes) {
    // 15: largest window, + 16: gzip header and trailer.
    DELTAPORT_VALIDATE(::inflateInit2(&stream_, 15 + 16) == Z_OK, DataError, file_.path(),
                       ": zlib does not start");
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t read(std::span<char> out) override;

 private:
  static constexpr std::size_t input_bytes = 128 * 1024;

  std::int64_t offset() const { return file_.offset() - static_cast<std::int64_t>(stream_.avail_in); }
  /// Makes input available; false at the end of the file.
  bool refill();
  void inflate_some();
  /// After a member: begins the next one or finds the end.
  void next_member();

  RawFile file_;
  std::vector<char> input_;
  z_stream stream_{};
  bool between_members_ = false;
  bool finished_ = false;
};

bool GzipSource::refill() {
  if (stream_.avail_in > 0) return true;
  const std::size_t got = file_.read(input_);
  stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
  stream_.avail_in = static_cast<uInt>(got);
  return got > 0;
}

void GzipSource::next_member() {
  bool padding = false;
  for (; refill() && *stream_.next_in == 0; ++stream_.next_in, --stream_.avail_in) padding = true;
  finished_ = stream_.avail_in == 0;
  if (finished_) return;
  DELTAPORT_VALIDATE(
      !padding && *stream_.next_in == 0x1f, DataError, file_.path(), ": byte ", offset(),
      ": bytes after the end of the gzip data; expected another member or the end of the file");
  ::inflateReset(&stream_);
  between_members_ = false;
}

void GzipSource::inflate_some() {
  DELTAPORT_VALIDATE(refill(), DataError, file_.path(), ": byte ", file_.offset(),
                     ": truncated gzip file; the compressed data go on beyond the end");
  const int result = ::inflate(&stream_, Z_NO_FLUSH);
  if (result == Z_STREAM_END) {
    between_members_ = true;
    return;
  }
  DELTAPORT_VALIDATE(result == Z_OK || result == Z_BUF_ERROR, DataError, file_.path(), ": byte ", offset(),
                     ": invalid gzip data: ", stream_.msg != nullptr ? stream_.msg : "unknown zlib error");
}

std::size_t GzipSource::read(std::span<char> out) {
  constexpr std::size_t most = std::numeric_limits<uInt>::max();
  std::size_t filled = 0;
  while (filled < out.size() && !finished_) {
    if (between_members_) {
      next_member();
      continue;
    }
    const std::size_t wanted = std::min(out.size() - filled, most);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    stream_.avail_out = static_cast<uInt>(wanted);
    inflate_some();
    filled += wanted - stream_.avail_out;
  }
  return filled;
}

}  // namespace

std::unique_ptr<ByteSource> open_gzip(RawFile file) {
  return std::make_unique<GzipSource>(std::move(file));
}

#else

std::unique_ptr<ByteSource> open_gzip(RawFile file) {
  throw DataError(
      concat(file.path(), ": gzip-compressed, but this build has no zlib (DELTAPORT_ENABLE_ZLIB)"));
}

#endif

}  // namespace deltaport
