#include "tools/text/data_files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::text {

namespace {

namespace fs = std::filesystem;

enum class Content { kText, kBinary, kEmpty, kUnreadable, kNoFile };

Content ContentOf(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return Content::kUnreadable;
  if (!S_ISREG(status.st_mode)) return Content::kNoFile;
  std::ifstream file(path, std::ios::binary);
  char buffer[8000];
  file.read(buffer, sizeof(buffer));
  const std::string_view head(buffer, static_cast<size_t>(file.gcount()));
  if (file.bad() || !file.is_open()) return Content::kUnreadable;
  if (head.empty()) return Content::kEmpty;
  return head.find('\0') == head.npos ? Content::kText : Content::kBinary;
}

absl::Status CheckNamed(const std::string& path) {
  const Content content = ContentOf(path);
  switch (content) {
    case Content::kText:
      return absl::OkStatus();
    case Content::kBinary:
      if (KindOf(path) != DataKind::kText) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          "data file ", QuotedPath(path),
          " is binary: it has a zero byte; give text, or tokens in a file "
          "named *.u16, *.bin or *.u32"));
    case Content::kEmpty:
      return absl::InvalidArgumentError(
          absl::StrCat("data file ", QuotedPath(path), " is empty"));
    case Content::kNoFile:
      return absl::InvalidArgumentError(absl::StrCat(
          "data file ", QuotedPath(path), " is not a regular file"));
    case Content::kUnreadable:
      break;
  }
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot read data file ", QuotedPath(path)));
}

// The files below `directory` that hold text, sorted.
absl::StatusOr<std::vector<std::string>> Walk(const std::string& directory) {
  std::vector<std::string> found, open = {directory};
  while (!open.empty()) {
    const std::string current = std::move(open.back());
    open.pop_back();
    std::error_code error;
    for (fs::directory_iterator it(current, error), end; it != end;
         it.increment(error)) {
      if (error) break;
      if (absl::StartsWith(it->path().filename().native(), ".")) continue;
      const std::string path = it->path().native();
      const fs::file_status link = it->symlink_status(error);
      if (fs::is_directory(link)) {
        open.push_back(path);
      } else if (KindOf(path) == DataKind::kText &&
                 ContentOf(path) == Content::kText) {
        found.push_back(path);
      }
    }
    if (error) {
      return absl::ErrnoToStatus(
          error.value(),
          absl::StrCat("cannot list directory ", QuotedPath(current)));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The names that match, possibly none.
absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern) {
  glob_t matches = {};
  const int code = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  std::vector<std::string> names;
  for (size_t i = 0; i < matches.gl_pathc; ++i) {
    names.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
  if (code == GLOB_NOSPACE || code == GLOB_ABORTED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot find the files of ", QuotedPath(pattern)));
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool IsDirectory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool Exists(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 || errno == EACCES;
}

absl::StatusOr<std::vector<std::string>> FilesOfPattern(
    const std::string& pattern) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, Glob(pattern));
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat("no data file or directory ",
                                            QuotedPath(pattern),
                                            ", nor any of this pattern"));
  }
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (IsDirectory(name)) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> below,
                               Walk(name));
      files.insert(files.end(), below.begin(), below.end());
      continue;
    }
    const Content content = ContentOf(name);
    if (content == Content::kText ||
        (content == Content::kBinary && KindOf(name) != DataKind::kText)) {
      files.push_back(name);
    }
  }
  return files;
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::vector<std::string> files;
  if (IsDirectory(path)) {
    TESSERA_ASSIGN_OR_RETURN(files, Walk(path));
  } else if (Exists(path)) {
    TESSERA_RETURN_IF_ERROR(CheckNamed(path));
    return std::vector<std::string>{path};
  } else {
    TESSERA_ASSIGN_OR_RETURN(files, FilesOfPattern(path));
  }
  if (!files.empty()) return files;
  return absl::InvalidArgumentError(
      absl::StrCat("data ", QuotedPath(path),
                   " has no text: empty and binary files, and in directories "
                   "hidden and token files, are skipped"));
}

}  // namespace

DataKind KindOf(std::string_view path) {
  if (absl::EndsWith(path, ".u16") || absl::EndsWith(path, ".bin")) {
    return DataKind::kU16;
  }
  return absl::EndsWith(path, ".u32") ? DataKind::kU32 : DataKind::kText;
}

absl::StatusOr<std::vector<DataFile>> FindDataFiles(
    std::span<const std::string> paths) {
  std::vector<DataFile> files;
  absl::flat_hash_set<std::string> seen;
  for (const std::string& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                             FilesOf(path));
    for (const std::string& file : found) {
      if (seen.insert(file).second) files.push_back({file, KindOf(file)});
    }
  }
  if (!files.empty()) return files;
  return absl::InvalidArgumentError(
      "no data; give files, directories or patterns such as docs,src/*.cc");
}

std::ostream& operator<<(std::ostream& os, const DataFile& file) {
  return os << file.path << " (" << static_cast<int>(file.kind) << ")";
}

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
  return absl::InvalidArgumentError(absl::StrCat(
      QuotedPath(path),
      " is not a token file; such files are named *.u16, *.bin or *.u32"));
}

absl::Status ReadAt(int fd, int64_t offset, std::span<char> target) {
  while (!target.empty()) {
    const ssize_t got = pread(fd, target.data(), target.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read");
    if (got == 0) {
      return absl::DataLossError("the file was truncated after it was opened");
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
