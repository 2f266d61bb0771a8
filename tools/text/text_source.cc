#include "tools/text/text_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/os/unique_fd.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#ifdef TESSERA_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef TESSERA_HAVE_ZSTD
#include <zstd.h>
#endif

namespace tessera::text {
namespace {

constexpr size_t kPartBytes = size_t{1} << 18;

bool IsGzip(std::string_view head) {
#ifdef TESSERA_HAVE_ZLIB
  return absl::StartsWith(head, "\x1f\x8b");
#else
  return false;
#endif
}

bool IsZstd(std::string_view head) {
#ifdef TESSERA_HAVE_ZSTD
  return absl::StartsWith(head, "\x28\xb5\x2f\xfd");
#else
  return false;
#endif
}

class PlainFile final : public TextSource::Decoder {
 public:
  explicit PlainFile(UniqueFd fd) : fd_(std::move(fd)) {}

  absl::StatusOr<size_t> Read(std::span<char> part) override {
    while (true) {
      const ssize_t count = read(fd_.get(), part.data(), part.size());
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) return absl::ErrnoToStatus(errno, "cannot read it");
    }
  }

 private:
  UniqueFd fd_;
};

absl::Status Damaged(std::string_view reason) {
  return absl::DataLossError(
      absl::StrCat("its compressed data is damaged: ", reason));
}

#ifdef TESSERA_HAVE_ZLIB
// Reads all members of a file, as bgzip writes.
class GzipFile final : public TextSource::Decoder {
 public:
  explicit GzipFile(UniqueFd fd) : file_(gzdopen(fd.Release(), "rb")) {
    if (file_ != nullptr) gzbuffer(file_, kPartBytes);
  }
  ~GzipFile() override {
    if (file_ != nullptr) gzclose(file_);
  }

  absl::StatusOr<size_t> Read(std::span<char> part) override {
    if (file_ == nullptr) return absl::ResourceExhaustedError("no memory");
    const auto most = std::min(part.size(), size_t{1} << 30);
    const int count =
        gzread(file_, part.data(), static_cast<unsigned int>(most));
    int error = Z_OK;
    const char* const message = gzerror(file_, &error);
    if (error == Z_OK || error == Z_STREAM_END) {
      return static_cast<size_t>(count);
    }
    // The name of the descriptor precedes the message.
    const std::string_view text = message;
    const size_t name = text.find(">: ");
    return Damaged(name == text.npos ? text : text.substr(name + 3));
  }

 private:
  gzFile file_;
};
#endif

#ifdef TESSERA_HAVE_ZSTD
// Reads all frames of a file, with windows of up to 2 GiB (zstd --long=31).
class ZstdFile final : public TextSource::Decoder {
 public:
  explicit ZstdFile(UniqueFd fd)
      : file_(std::move(fd)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, 31);
  }

  absl::StatusOr<size_t> Read(std::span<char> part) override {
    ZSTD_outBuffer out = {part.data(), part.size(), 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size && !is_pending_) {
        TESSERA_ASSIGN_OR_RETURN(const size_t count, file_.Read(bytes_));
        if (count == 0 && left_ != 0) return Damaged("unexpected end of file");
        if (count == 0) return 0;
        in_ = {bytes_.data(), count, 0};
      }
      left_ = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(left_)) return Damaged(ZSTD_getErrorName(left_));
      is_pending_ = left_ != 0 && out.pos == out.size;
    }
    return out.pos;
  }

 private:
  PlainFile file_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  std::vector<char> bytes_ = std::vector<char>(kPartBytes);
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  size_t left_ = 0;          // 0: a frame has ended.
  bool is_pending_ = false;  // More text waits for room.
};
#endif

std::unique_ptr<TextSource::Decoder> DecoderOf(std::string_view head,
                                               UniqueFd fd) {
#ifdef TESSERA_HAVE_ZLIB
  if (IsGzip(head)) return std::make_unique<GzipFile>(std::move(fd));
#endif
#ifdef TESSERA_HAVE_ZSTD
  if (IsZstd(head)) return std::make_unique<ZstdFile>(std::move(fd));
#endif
  return std::make_unique<PlainFile>(std::move(fd));
}

}  // namespace

bool IsReadableCompression(std::string_view head) {
  return IsGzip(head) || IsZstd(head);
}

TextSource::TextSource(std::string path, std::unique_ptr<Decoder> decoder)
    : path_(std::move(path)), decoder_(std::move(decoder)) {}

absl::StatusOr<TextSource> TextSource::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char head[4] = {};
  const ssize_t count =
      fd.valid() ? pread(fd.get(), head, sizeof(head), 0) : -1;
  if (count < 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot read data file ", QuotedPath(path)));
  }
  return TextSource(
      path, DecoderOf({head, static_cast<size_t>(count)}, std::move(fd)));
}

absl::StatusOr<size_t> TextSource::Read(std::span<char> part) {
  size_t done = 0;
  while (done < part.size()) {
    TESSERA_ASSIGN_OR_RETURN(
        const size_t count, decoder_->Read(part.subspan(done)),
        Annotate(_, absl::StrCat("data file ", QuotedPath(path_))));
    if (count == 0) break;
    done += count;
  }
  return done;
}

}  // namespace tessera::text
