#include "tools/text/data_files.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/indexed_dataset.h"
#include "tools/text/text_source.h"

namespace tessera::text {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

enum class Content {
  kText,
  kBinary,
  kCompressed,
  kCompressedText,  // Which TextSource reads.
  kEmpty,
  kUnreadable,
  kNoFile
};

// The first bytes of compressed files and of UTF-16, and the commands that make
// text of them.
constexpr std::pair<std::string_view, std::string_view> kCompressions[] = {
    {"\x1f\x8b", "gzip -dk"},
    {"\x28\xb5\x2f\xfd", "zstd -dk"},
    {"\xfd\x37zXZ", "xz -dk"},
    {"BZh91AY&SY", "bzip2 -dk"},
    {"PK\x03\x04", "unzip"},
    {"\xff\xfe", "iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", "iconv -f UTF-16 -t UTF-8"}};

// The first bytes of a file, at most `count`; "" if it cannot be read.
std::string HeadOf(const std::string& path, size_t count) {
  std::ifstream file(path, std::ios::binary);
  std::string head(count, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return head;
}

// The same of its decompressed text.
std::string HeadOfText(const std::string& path, size_t count) {
  std::string head(count, '\0');
  absl::StatusOr<TextSource> source = TextSource::Open(path);
  if (!source.ok()) return "";
  head.resize(source->Read(head).value_or(0));
  return head;
}

// The command that makes text of a file with these first bytes; "" if it needs
// none.
std::string_view DecompressorOf(std::string_view head) {
  for (const auto& [magic, command] : kCompressions) {
    if (absl::StartsWith(head, magic)) return command;
  }
  return "";
}

Content ContentOf(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return Content::kUnreadable;
  if (!S_ISREG(status.st_mode)) return Content::kNoFile;
  if (status.st_size == 0) return Content::kEmpty;
  std::string head = HeadOf(path, 8000);
  if (head.empty()) return Content::kUnreadable;
  if (IsReadableCompression(head)) {
    head = HeadOfText(path, 8000);
    return head.find('\0') == head.npos ? Content::kCompressedText
                                        : Content::kCompressed;
  }
  if (!DecompressorOf(head).empty()) return Content::kCompressed;
  return head.find('\0') == head.npos ? Content::kText : Content::kBinary;
}

absl::Status CompressedError(const std::string& path) {
  const std::string_view command = DecompressorOf(HeadOf(path, 16));
  const bool is_utf16 = absl::StartsWith(command, "iconv");
  return absl::InvalidArgumentError(
      absl::StrCat("data file ", QuotedPath(path),
                   is_utf16 ? " is UTF-16; convert it first ("
                            : " is compressed; decompress it first (",
                   command, ")"));
}

bool IsNamedAfterJson(const std::string& path) {
  return absl::StrContains(absl::AsciiStrToLower(path), ".json");
}

// True for text that is not named explicitly. Compressed text is used if it is
// JSON, so that the archives among sources are skipped. Zero bytes are errors
// in JSON lines.
bool IsUsable(const std::string& path, Content content) {
  return content == Content::kText ||
         (content == Content::kBinary &&
          KindOf(path) == DataKind::kJsonLines) ||
         (content == Content::kCompressedText && IsNamedAfterJson(path));
}

// True for compressed JSON that cannot be read, which is never skipped
// silently.
bool IsCompressedJson(const std::string& path, Content content) {
  return content == Content::kCompressed && IsNamedAfterJson(path);
}

absl::Status Unreadable(const std::string& path) {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot read data file ", QuotedPath(path)));
}

// The error of a file that is not named explicitly; nothing is skipped silently
// but a link without a target.
absl::Status CheckFound(const std::string& path, Content content) {
  if (content == Content::kUnreadable && errno != ENOENT) {
    return Unreadable(path);
  }
  return IsCompressedJson(path, content) ? CompressedError(path)
                                         : absl::OkStatus();
}

absl::Status CheckNamed(const std::string& path) {
  const Content content = ContentOf(path);
  switch (content) {
    case Content::kText:
    case Content::kCompressedText:
      return absl::OkStatus();
    case Content::kCompressed:
    case Content::kBinary:
      if (!IsText(KindOf(path)) || IsUsable(path, content)) {
        return absl::OkStatus();
      }
      if (content == Content::kCompressed) return CompressedError(path);
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
  return Unreadable(path);
}

// Searches a directory for text files. Searches linked directories last, so
// that the names of files do not go through links that point inside.
class Walker {
 public:
  // The text files below `directory`, sorted.
  absl::StatusOr<std::vector<std::string>> Walk(const std::string& directory) {
    open_ = {directory};
    while (!open_.empty() || !links_.empty()) {
      if (open_.empty()) {
        open_.push_back(links_.extract(links_.begin()).value());
      }
      const std::string current = std::move(open_.back());
      open_.pop_back();
      struct stat status;
      const bool is_new =
          stat(current.c_str(), &status) != 0 ||
          seen_.insert({uint64_t{status.st_dev}, uint64_t{status.st_ino}})
              .second;
      if (is_new) TESSERA_RETURN_IF_ERROR(List(current));
    }
    std::sort(found_.begin(), found_.end());
    return std::move(found_);
  }

 private:
  absl::Status List(const std::string& directory) {
    std::error_code error;
    for (fs::directory_iterator it(directory, error), end; !error && it != end;
         it.increment(error)) {
      if (absl::StartsWith(it->path().filename().native(), ".")) continue;
      const std::string path = it->path().native();
      if (IsDirectory(path)) {
        std::error_code unused;
        if (it->is_symlink(unused)) {
          links_.insert(path);
        } else {
          open_.push_back(path);
        }
      } else {
        TESSERA_RETURN_IF_ERROR(AddFile(path));
      }
    }
    if (!error) return absl::OkStatus();
    return absl::ErrnoToStatus(
        error.value(),
        absl::StrCat("cannot list directory ", QuotedPath(directory)));
  }

  absl::Status AddFile(const std::string& path) {
    const Content content = ContentOf(path);
    TESSERA_RETURN_IF_ERROR(CheckFound(path, content));
    if (IsUsable(path, content) && IsText(KindOf(path))) {
      found_.push_back(path);
    }
    return absl::OkStatus();
  }

  std::vector<std::string> open_, found_;
  std::set<std::string> links_;
  absl::flat_hash_set<std::pair<uint64_t, uint64_t>> seen_;
};

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
  return lstat(path.c_str(), &status) == 0 || errno == EACCES;
}

absl::StatusOr<std::vector<std::string>> FilesOfPattern(
    const std::string& pattern) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, Glob(pattern));
  if (names.empty()) {
    // Megatron-LM names a data set without the endings of its files.
    const std::string index = absl::StrCat(pattern, ".idx");
    return absl::NotFoundError(absl::StrCat(
        "no data file or directory ", QuotedPath(pattern),
        ", nor any of this pattern",
        Exists(index) ? absl::StrCat("; give ", QuotedPath(index)) : ""));
  }
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (IsDirectory(name)) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> below,
                               Walker().Walk(name));
      files.insert(files.end(), below.begin(), below.end());
      continue;
    }
    const Content content = ContentOf(name);
    TESSERA_RETURN_IF_ERROR(CheckFound(name, content));
    const bool may_have_tokens =
        content == Content::kBinary || content == Content::kCompressed;
    if (IsUsable(name, content) || (may_have_tokens && !IsText(KindOf(name)))) {
      files.push_back(name);
    }
  }
  return files;
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::vector<std::string> files;
  if (IsDirectory(path)) {
    TESSERA_ASSIGN_OR_RETURN(files, Walker().Walk(path));
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
  TESSERA_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(path));
  std::string part(size_t{1} << 20, '\0'), line;
  int64_t number = 1;
  const auto end_line = [&]() -> absl::Status {
    const size_t mark = number == 1 && absl::StartsWith(line, kByteOrderMark)
                            ? kByteOrderMark.size()
                            : 0;
    TESSERA_RETURN_IF_ERROR(use(number, std::string_view(line).substr(mark)));
    ++number;
    line.clear();
    return absl::OkStatus();
  };
  size_t count = part.size();  // Of the last part; less at the end.
  while (count == part.size()) {
    TESSERA_ASSIGN_OR_RETURN(count, source.Read(part));
    std::string_view rest(part.data(), count);
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
  return line.empty() ? absl::OkStatus() : end_line();
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  if (!IsReadableCompression(HeadOf(path, 4))) {
    return ReadFile(path, kMaxTextBytes);
  }
  TESSERA_ASSIGN_OR_RETURN(TextSource source, TextSource::Open(path));
  std::string text;
  for (size_t part = size_t{1} << 20, count = part; count == part;) {
    const size_t before = text.size();
    text.resize(before + part);
    TESSERA_ASSIGN_OR_RETURN(count,
                             source.Read(std::span(text).subspan(before)));
    text.resize(before + count);
    if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("data file ", QuotedPath(path), " has more than ",
                       kMaxTextBytes, " bytes of text"));
    }
  }
  return text;
}

// A document in a line of JSON lines. Refers to the memory of the parsed line
// and, for tokens, of this object.
struct ParsedDocument {
  Document document;
  std::vector<TokenId> ids = {};
  std::vector<TokenRange> masked = {};
};

constexpr int64_t kIgnoredLabel = -100;  // Of Hugging Face's losses.

absl::Status Invalid(std::string_view key, size_t index, const Json& value,
                     std::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\"[", index,
                                                 "] is ", DescribeJson(value),
                                                 "; it must be ", allowed));
}

// The array `key` with one value for each of `count` ids; null if it is missing
// or null.
absl::StatusOr<const Json*> ArrayOfIds(const Json& object, const char* key,
                                       size_t count) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return nullptr;
  if (found->is_array() && found->size() == count) return &*found;
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", key, "\" is ",
      found->is_array() ? absl::StrCat("an array of ", found->size())
                        : DescribeJson(*found),
      "; it must be an array of ", count, ", one for each of \"input_ids\""));
}

// The ids without the padding before or after them.
absl::StatusOr<TokenRange> AttendedIds(const Json& object, size_t count) {
  constexpr char kKey[] = "attention_mask";
  TokenRange attended = {0, static_cast<int64_t>(count)};
  TESSERA_ASSIGN_OR_RETURN(const Json* mask, ArrayOfIds(object, kKey, count));
  if (mask == nullptr) return attended;
  attended = {0, 0};
  for (size_t i = 0; i < count; ++i) {
    const std::optional<int64_t> value = JsonInteger((*mask)[i]);
    if (value != 0 && value != 1) return Invalid(kKey, i, (*mask)[i], "0 or 1");
    if (value == 0) continue;
    const auto at = static_cast<int64_t>(i);
    if (attended.end == 0) attended = {at, at};
    if (attended.end < at) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"attention_mask\" has 1 at ", i, " after 0 at ", attended.end,
          "; only padding before and after the ids is supported"));
    }
    ++attended.end;
  }
  return attended;
}

// Reads the labels of the ids from `first` on, of `count` ids.
absl::Status ReadLabels(const Json& object, size_t count, size_t first,
                        ParsedDocument& parsed) {
  constexpr char kKey[] = "labels";
  TESSERA_ASSIGN_OR_RETURN(const Json* labels, ArrayOfIds(object, kKey, count));
  if (labels == nullptr) return absl::OkStatus();
  TokenRanges masked;
  for (size_t i = 0; i < parsed.ids.size(); ++i) {
    const Json& given = (*labels)[first + i];
    const std::optional<int64_t> label = JsonInteger(given);
    const auto at = static_cast<int64_t>(i);
    if (label == kIgnoredLabel) {
      masked.Append({at, at + 1});
    } else if (label != parsed.ids[i]) {
      return Invalid(kKey, first + i, given,
                     absl::StrCat("the id ", parsed.ids[i],
                                  " of \"input_ids\", which training shifts, "
                                  "or -100 where nothing is learned"));
    }
  }
  parsed.masked.assign(masked.ranges().begin(), masked.ranges().end());
  return absl::OkStatus();
}

absl::StatusOr<const Json*> FindIds(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_array()) return &*found;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is ",
                   found == object.end() ? "missing" : DescribeJson(*found),
                   "; it must be an array of ids, such as [5, 17, 2]"));
}

// Appends some ids of the array `key`.
absl::Status AppendIds(const Json& array, const char* key, TokenRange range,
                       int64_t vocabulary, std::vector<TokenId>& ids) {
  for (auto i = static_cast<size_t>(range.begin);
       i < static_cast<size_t>(range.end); ++i) {
    const std::optional<int64_t> id = JsonInteger(array[i]);
    if (!id.has_value() || *id < 0 || *id >= vocabulary) {
      return Invalid(
          key, i, array[i],
          absl::StrCat("an id of the tokenizer, from 0 to ", vocabulary - 1));
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedDocument> TokensOf(const Json& object,
                                        int64_t vocabulary) {
  constexpr char kKey[] = "input_ids";
  TESSERA_ASSIGN_OR_RETURN(const Json* const ids, FindIds(object, kKey));
  ParsedDocument parsed;
  TESSERA_ASSIGN_OR_RETURN(const TokenRange attended,
                           AttendedIds(object, ids->size()));
  TESSERA_RETURN_IF_ERROR(
      AppendIds(*ids, kKey, attended, vocabulary, parsed.ids));
  TESSERA_RETURN_IF_ERROR(ReadLabels(
      object, ids->size(), static_cast<size_t>(attended.begin), parsed));
  return parsed;
}

absl::Status FoundArray() {
  return absl::InvalidArgumentError(
      "expected an object, found an array; write each of its objects to a "
      "line, for example by jq -c '.[]' FILE > FILE.jsonl");
}

absl::StatusOr<ParsedDocument> TextOf(const Json& object) {
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
    if (const auto text = string_at("text")) {
      return ParsedDocument{{.text = *text}};
    }
  } else if (has("prompt") || has("completion")) {
    const auto prompt = string_at("prompt"), text = string_at("completion");
    if (prompt.has_value() && text.has_value()) {
      return ParsedDocument{{*prompt, *text, /*is_pair=*/true}};
    }
    return absl::InvalidArgumentError(
        "expected the strings \"prompt\" and \"completion\", such as "
        "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}");
  } else if (has("messages")) {
    return absl::InvalidArgumentError(
        "\"messages\" need the template of a chat, which is not supported; "
        "apply it, and give the strings \"prompt\" and \"completion\", whose "
        "special tokens become ids (--special_tokens=pairs), or "
        "\"input_ids\"");
  }
  if (object.is_array()) return FoundArray();
  return absl::InvalidArgumentError(
      "expected an object with a string \"text\", such as {\"text\": \"One "
      "document.\"}, with the strings \"prompt\" and \"completion\", or with "
      "the array \"input_ids\"");
}

absl::StatusOr<ParsedDocument> DocumentOf(const Json& object,
                                          int64_t vocabulary) {
  return object.is_object() && object.contains("input_ids")
             ? TokensOf(object, vocabulary)
             : TextOf(object);
}

constexpr JsonLimits kLineLimits = {.max_bytes = size_t{kMaxLineBytes},
                                    .max_depth = 10'000,
                                    .dialect = JsonDialect::kPython};

// Parses a line of JSON lines and passes its document to `add`. Sets `is_bad`
// if the line is invalid.
absl::Status AddLine(std::string_view line, int64_t vocabulary,
                     absl::FunctionRef<absl::Status(const Document&)> add,
                     bool& is_bad) {
  is_bad = true;
  // The first line of an array that is written in several lines.
  if (absl::StripAsciiWhitespace(line) == "[") return FoundArray();
  TESSERA_ASSIGN_OR_RETURN(const Json object, ParseJson(line, kLineLimits));
  TESSERA_ASSIGN_OR_RETURN(ParsedDocument parsed,
                           DocumentOf(object, vocabulary));
  is_bad = false;
  const bool has_tokens = object.contains("input_ids");
  if (has_tokens && parsed.ids.empty()) return absl::OkStatus();
  parsed.document.ids = parsed.ids;
  parsed.document.masked = parsed.masked;
  return add(parsed.document);
}

// Appends the whole array of ids `key`.
absl::Status AppendAllIds(const Json& object, const char* key,
                          int64_t vocabulary, std::vector<TokenId>& ids) {
  TESSERA_ASSIGN_OR_RETURN(const Json* const array, FindIds(object, key));
  return AppendIds(*array, key, {0, static_cast<int64_t>(array->size())},
                   vocabulary, ids);
}

// The ids of the prompt, which are masked, and of a completion.
absl::StatusOr<ParsedDocument> TokensOfPair(const Json& object, const char* key,
                                            int64_t vocabulary) {
  ParsedDocument parsed;
  TESSERA_RETURN_IF_ERROR(
      AppendAllIds(object, "prompt_ids", vocabulary, parsed.ids));
  if (!parsed.ids.empty()) {
    parsed.masked = {{0, static_cast<int64_t>(parsed.ids.size())}};
  }
  TESSERA_RETURN_IF_ERROR(AppendAllIds(object, key, vocabulary, parsed.ids));
  return parsed;
}

absl::StatusOr<std::string_view> StringOfPair(const Json& object,
                                              const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) {
    return found->get_ref<const std::string&>();
  }
  if (found != object.end() && found->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", key,
        "\" is an array; messages need the template of a chat, which is not "
        "supported: apply it, and give strings, or ids as \"prompt_ids\", "
        "\"chosen_ids\" and \"rejected_ids\""));
  }
  return absl::InvalidArgumentError(
      "expected an object with the strings \"prompt\", \"chosen\" and "
      "\"rejected\", such as {\"prompt\": \"2 + 2 =\", \"chosen\": \" 4\", "
      "\"rejected\": \" 5\"}, or with arrays of ids as \"prompt_ids\", "
      "\"chosen_ids\" and \"rejected_ids\"");
}

// Parses a line of preferences and passes it to `add`.
absl::Status AddPreference(
    std::string_view line, int64_t vocabulary,
    absl::FunctionRef<absl::Status(const Preference&)> add) {
  TESSERA_ASSIGN_OR_RETURN(const Json object, ParseJson(line, kLineLimits));
  if (object.is_object() && object.contains("prompt_ids")) {
    TESSERA_ASSIGN_OR_RETURN(const ParsedDocument chosen,
                             TokensOfPair(object, "chosen_ids", vocabulary));
    TESSERA_ASSIGN_OR_RETURN(const ParsedDocument rejected,
                             TokensOfPair(object, "rejected_ids", vocabulary));
    return add({{.ids = chosen.ids, .masked = chosen.masked},
                {.ids = rejected.ids, .masked = rejected.masked}});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view prompt,
                           StringOfPair(object, "prompt"));
  TESSERA_ASSIGN_OR_RETURN(const std::string_view chosen,
                           StringOfPair(object, "chosen"));
  TESSERA_ASSIGN_OR_RETURN(const std::string_view rejected,
                           StringOfPair(object, "rejected"));
  return add({{prompt, chosen, /*is_pair=*/true},
              {prompt, rejected, /*is_pair=*/true}});
}

// True if the first line that is not blank begins with an object that has a
// field of a document, or if such an object begins an array. The text may be
// cut off anywhere.
bool BeginsWithDocument(std::string_view text) {
  absl::ConsumePrefix(&text, kByteOrderMark);
  text = absl::StripLeadingAsciiWhitespace(text);
  const bool is_array = absl::StartsWith(text, "[");
  if (!is_array) text = text.substr(0, text.find('\n'));
  // The known keys, and whether their value is an array.
  static constexpr std::pair<std::string_view, bool> kKeys[] = {
      {"text", false},        {"prompt", false},  {"completion", false},
      {"input_ids", true},    {"messages", true}, {"conversations", true},
      {"instruction", false}, {"chosen", false}};
  const auto* key = std::end(kKeys);  // Whose value is expected next.
  bool found = false;
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    if (key != std::end(kKeys)) {
      found |= key->second ? event == Json::parse_event_t::array_start
                           : value.is_string();
      key = std::end(kKeys);
    }
    if (event == Json::parse_event_t::key && depth == (is_array ? 2 : 1)) {
      key = std::find_if(
          std::begin(kKeys), std::end(kKeys), [&](const auto& known) {
            return known.first == value.get_ref<const std::string&>();
          });
    }
    return true;
  };
  const Json beginning = Json::parse(StrictJson(text), look, false);
  static_cast<void>(beginning);
  return found || key != std::end(kKeys);
}

// True if a text file has JSON lines.
bool HasJsonLines(const std::string& path) {
  constexpr size_t kStart = 64, kMost = size_t{1} << 20;
  const std::string head = HeadOfText(path, kStart);
  std::string_view start = head;
  absl::ConsumePrefix(&start, kByteOrderMark);
  const size_t first = start.find_first_not_of(" \t\r\n");
  const bool may_be = first == start.npos
                          ? head.size() == kStart
                          : start[first] == '{' || start[first] == '[';
  return may_be && BeginsWithDocument(HeadOfText(path, kMost));
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
  std::string_view name = path;
  for (const std::string_view ending : {".gz", ".zst"}) {
    absl::ConsumeSuffix(&name, ending);
  }
  for (const std::string_view ending :
       {".jsonl", ".jsonlines", ".ndjson", ".jl"}) {
    if (absl::EndsWithIgnoreCase(name, ending)) return DataKind::kJsonLines;
  }
  return HasJsonLines(std::string(path)) ? DataKind::kJsonLines
                                         : DataKind::kText;
}

bool NamesData(const std::string& path) {
  if (Exists(path)) return true;
  const absl::StatusOr<std::vector<std::string>> matches = Glob(path);
  return matches.ok() && !matches->empty();
}

std::vector<std::string> JoinNames(
    std::span<const std::string> parts,
    absl::FunctionRef<bool(const std::string&)> names_data) {
  constexpr size_t kMostParts = 8;  // Of a name.
  const std::vector<std::string> unchanged(parts.begin(), parts.end());
  if (std::all_of(parts.begin(), parts.end(), names_data)) return unchanged;
  // The number of parts of the name that begins each part; 0: none fits.
  std::vector<size_t> lengths(parts.size() + 1, 0);
  lengths.back() = 1;
  for (size_t i = parts.size(); i-- > 0;) {
    std::string name;
    for (size_t n = 1; n <= kMostParts && i + n <= parts.size(); ++n) {
      absl::StrAppend(&name, n == 1 ? "" : ",", parts[i + n - 1]);
      if (lengths[i + n] == 0 || !names_data(name)) continue;
      lengths[i] = n;
      break;
    }
  }
  if (lengths[0] == 0) return unchanged;
  std::vector<std::string> names;
  for (size_t i = 0; i < parts.size(); i += lengths[i]) {
    names.push_back(absl::StrJoin(parts.subspan(i, lengths[i]), ","));
  }
  return names;
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
    const DataFile& file, absl::FunctionRef<absl::Status(const Document&)> add,
    const DocumentOptions& options) {
  if (file.kind == DataKind::kText) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadText(file.path));
    return add({.text = text});
  }
  return ForEachLine(
      file.path, [&](int64_t number, std::string_view line) -> absl::Status {
        if (absl::StripAsciiWhitespace(line).empty()) return absl::OkStatus();
        bool is_bad = false;
        const absl::Status status =
            AddLine(line, options.vocabulary, add, is_bad);
        if (!is_bad) return status;
        if (options.bad_lines != nullptr && *options.bad_lines > 0) {
          --*options.bad_lines;
          return absl::OkStatus();
        }
        return absl::InvalidArgumentError(
            absl::StrCat("data file ", QuotedPath(file.path), ", line ", number,
                         ": ", status.message()));
      });
}

absl::Status ForEachPreference(
    const DataFile& file,
    absl::FunctionRef<absl::Status(const Preference&)> add,
    int64_t vocabulary) {
  return ForEachLine(
      file.path, [&](int64_t number, std::string_view line) -> absl::Status {
        if (absl::StripAsciiWhitespace(line).empty()) return absl::OkStatus();
        return Annotate(AddPreference(line, vocabulary, add),
                        absl::StrCat("data file ", QuotedPath(file.path),
                                     ", line ", number));
      });
}

std::ostream& operator<<(std::ostream& os, const DataFile& file) {
  return os << file.path << " (" << static_cast<int>(file.kind) << ")";
}

}  // namespace tessera::text
