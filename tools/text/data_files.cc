#include "tools/text/data_files.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/indexed_dataset.h"

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
      if (!IsText(KindOf(path))) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          "data file ", QuotedPath(path),
          " is binary: it has a zero byte; give text, or tokens in a file "
          "named *.u16, *.u32, *.bin, *.idx or *.npy"));
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

// The text files below `directory`, sorted.
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
      } else if (IsText(KindOf(path)) && ContentOf(path) == Content::kText) {
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

// The names that match the pattern, possibly none.
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
        (content == Content::kBinary && !IsText(KindOf(name)))) {
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

// Calls `use` with each line of a file, without its line end. Reads the file in
// parts.
absl::Status ForEachLine(
    const std::string& path,
    absl::FunctionRef<absl::Status(int64_t number, std::string_view)> use) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot read data file ", QuotedPath(path)));
  }
  std::string part(size_t{1} << 20, '\0'), line;
  int64_t number = 1;
  const auto end_line = [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(use(number, line));
    ++number;
    line.clear();
    return absl::OkStatus();
  };
  while (file) {
    file.read(part.data(), static_cast<std::streamsize>(part.size()));
    std::string_view rest(part.data(), static_cast<size_t>(file.gcount()));
    for (size_t end = rest.find('\n'); end != rest.npos;
         end = rest.find('\n')) {
      line += rest.substr(0, end);
      rest.remove_prefix(end + 1);
      TESSERA_RETURN_IF_ERROR(end_line());
    }
    line += rest;
    if (static_cast<int64_t>(line.size()) > kMaxLineBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("data file ", QuotedPath(path), ", line ", number,
                       " has more than ", kMaxLineBytes, " bytes"));
    }
  }
  if (file.bad()) {
    return absl::DataLossError(
        absl::StrCat("cannot read data file ", QuotedPath(path)));
  }
  return line.empty() ? absl::OkStatus() : end_line();
}

// The document in a line of a *.jsonl. Refers to the memory of `object`.
absl::StatusOr<Document> DocumentOf(const nlohmann::json& object) {
  const auto string_at =
      [&](const char* key) -> std::optional<std::string_view> {
    const auto value = object.find(key);
    if (value == object.end() || !value->is_string()) return std::nullopt;
    return value->get_ref<const std::string&>();
  };
  const auto has = [&](const char* key) {
    return object.is_object() && object.contains(key);
  };
  if (has("text") && has("completion")) {
    return absl::InvalidArgumentError(
        "it has \"text\" and \"completion\"; give either \"text\", or "
        "\"prompt\" and \"completion\"");
  }
  if (has("text")) {
    if (const auto text = string_at("text")) return Document{.text = *text};
  } else if (has("prompt") || has("completion")) {
    const auto prompt = string_at("prompt"), text = string_at("completion");
    if (prompt.has_value() && text.has_value()) return Document{*prompt, *text};
    return absl::InvalidArgumentError(
        "expected the strings \"prompt\" and \"completion\", such as "
        "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}");
  } else if (has("messages")) {
    return absl::InvalidArgumentError(
        "\"messages\" need the template of a chat, which is not supported; "
        "apply it, and give the strings \"prompt\" and \"completion\"");
  }
  return absl::InvalidArgumentError(
      "expected an object with a string \"text\", such as {\"text\": \"One "
      "document.\"}, or with the strings \"prompt\" and \"completion\"");
}

}  // namespace

DataKind KindOf(std::string_view path) {
  if (absl::EndsWith(path, ".idx")) return DataKind::kIndexed;
  if (absl::EndsWith(path, ".bin")) {
    const bool is_indexed = Exists(absl::StrCat(PrefixOf(path), ".idx"));
    return is_indexed ? DataKind::kIndexed : DataKind::kU16;
  }
  if (absl::EndsWith(path, ".u16")) return DataKind::kU16;
  if (absl::EndsWith(path, ".u32")) return DataKind::kU32;
  if (absl::EndsWith(path, ".npy")) return DataKind::kNpy;
  return absl::EndsWith(path, ".jsonl") ? DataKind::kJsonLines
                                        : DataKind::kText;
}

absl::StatusOr<std::vector<DataFile>> FindDataFiles(
    std::span<const std::string> paths) {
  std::vector<DataFile> files;
  absl::flat_hash_set<std::string> seen;
  for (const std::string& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                             FilesOf(path));
    for (const std::string& name : found) {
      const DataKind kind = KindOf(name);
      const std::string file = kind == DataKind::kIndexed
                                   ? absl::StrCat(PrefixOf(name), ".bin")
                                   : name;
      if (seen.insert(file).second) files.push_back({file, kind});
    }
  }
  if (!files.empty()) return files;
  return absl::InvalidArgumentError(
      "no data; give files, directories or patterns such as docs,src/*.cc");
}

absl::Status ForEachDocument(
    const DataFile& file,
    absl::FunctionRef<absl::Status(const Document&)> add) {
  if (file.kind == DataKind::kText) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text,
                             ReadFile(file.path, kMaxTextBytes));
    return add({.text = text});
  }
  return ForEachLine(
      file.path, [&](int64_t number, std::string_view line) -> absl::Status {
        if (absl::StripAsciiWhitespace(line).empty()) return absl::OkStatus();
        const auto refuse = [&](absl::StatusCode code, std::string_view why) {
          return absl::Status(
              code, absl::StrCat("data file ", QuotedPath(file.path), ", line ",
                                 number, ": ", why));
        };
        const absl::StatusOr<nlohmann::json> object =
            ParseJson(line, {.max_bytes = static_cast<size_t>(kMaxLineBytes)});
        if (!object.ok()) {
          return refuse(absl::StatusCode::kInvalidArgument,
                        object.status().message());
        }
        TESSERA_ASSIGN_OR_RETURN(const Document document, DocumentOf(*object),
                                 refuse(_.code(), _.message()));
        return add(document);
      });
}

std::ostream& operator<<(std::ostream& os, const DataFile& file) {
  return os << file.path << " (" << static_cast<int>(file.kind) << ")";
}

}  // namespace tessera::text
