#include "tools/text/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/text/data_files.h"

namespace tessera::text {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian, and are read as they are");

absl::StatusOr<int64_t> WidthOf(const std::string& path) {
  switch (KindOf(path)) {
    case DataKind::kU16:
      return 2;
    case DataKind::kU32:
      return 4;
    case DataKind::kText:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(QuotedPath(path),
                   " is no token file; they are called .u16, .bin or .u32"));
}

absl::Status ReadAt(int fd, int64_t offset, std::span<char> target) {
  while (!target.empty()) {
    const ssize_t got = pread(fd, target.data(), target.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read");
    if (got == 0) {
      return absl::DataLossError("the file was cut after it was opened");
    }
    target = target.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

template <typename Stored>
void Widen(const std::vector<char>& bytes, std::span<TokenId> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    tokens[i] = static_cast<TokenId>(stored);
  }
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path,
                                          int64_t vocabulary) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t width, WidthOf(path));
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!fd.valid() || fstat(fd.get(), &status) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot open token file ", QuotedPath(path)));
  }
  const int64_t bytes = status.st_size;
  if (!S_ISREG(status.st_mode) || bytes == 0 || bytes % width != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token file ", QuotedPath(path), " has ", bytes,
        " bytes; it must be a regular file of at least one token, ", width,
        " bytes each"));
  }
  return TokenFile(path, std::move(fd), width, vocabulary, bytes / width);
}

absl::Status TokenFile::Read(int64_t begin, std::span<TokenId> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (begin < 0 || count > token_count_ || begin > token_count_ - count) {
    return absl::OutOfRangeError(absl::StrCat(
        "token file ", QuotedPath(path_), ": ", count, " tokens from ", begin,
        " on are not among its ", token_count_));
  }
  std::vector<char> bytes(static_cast<size_t>(count * width_));
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd_.get(), begin * width_, bytes),
      Annotate(_, absl::StrCat("token file ", QuotedPath(path_))));
  width_ == 2 ? Widen<uint16_t>(bytes, tokens) : Widen<uint32_t>(bytes, tokens);
  const auto wrong =
      std::find_if(tokens.begin(), tokens.end(),
                   [&](TokenId id) { return id < 0 || id >= vocabulary_; });
  if (wrong == tokens.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "token file ", QuotedPath(path_), ": token ",
      begin + (wrong - tokens.begin()), " is ", static_cast<uint32_t>(*wrong),
      "; the vocabulary has ", vocabulary_, ": was it made for another?"));
}

absl::Status WriteTokenFile(const std::string& path,
                            std::span<const TokenId> tokens) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t width, WidthOf(path));
  std::string bytes;
  bytes.reserve(tokens.size() * static_cast<size_t>(width));
  for (const TokenId id : tokens) {
    if (id < 0 || (width == 2 && id >= 1 << 16)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token file ", QuotedPath(path), ": id ", id,
                       " does not fit ", width, " bytes"));
    }
    // Little-endian: the low bytes come first.
    bytes.append(reinterpret_cast<const char*>(&id),
                 static_cast<size_t>(width));
  }
  return WriteFile(path, bytes);
}

}  // namespace tessera::text
