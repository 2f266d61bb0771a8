#include "tools/text/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/text/characters.h"
#include "tools/text/data_files.h"

namespace tessera::text {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian, and are read as they are");

absl::Status Annotated(const absl::Status& status, std::string_view path) {
  return absl::Status(
      status.code(),
      absl::StrCat("token file ", QuotedPath(path), ": ", status.message()));
}

// Type, position and number of the tokens in a file; -1 tokens stands for the
// rest of the file.
struct Layout {
  TokenType type = TokenType::kU16;
  int64_t offset = 0;
  int64_t tokens = -1;
  TokenRanges prompts = {};
};

// The text from a key's value on in the header of a NumPy array, which is a
// Python dictionary.
absl::StatusOr<std::string_view> ValueOf(std::string_view header,
                                         std::string_view key) {
  const size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == header.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("its header has no '", key, "'"));
  }
  return absl::StripLeadingAsciiWhitespace(header.substr(at + key.size() + 3));
}

absl::StatusOr<TokenType> TypeOfNpy(std::string_view header) {
  TESSERA_ASSIGN_OR_RETURN(std::string_view text, ValueOf(header, "descr"));
  constexpr std::pair<std::string_view, TokenType> kTypes[] = {
      {"'|u1'", TokenType::kU8},  {"'|i1'", TokenType::kI8},
      {"'<u2'", TokenType::kU16}, {"'<i2'", TokenType::kI16},
      {"'<u4'", TokenType::kU32}, {"'<i4'", TokenType::kI32},
      {"'<i8'", TokenType::kI64}};
  for (const auto& [name, type] : kTypes) {
    if (absl::StartsWith(text, name)) return type;
  }
  return absl::UnimplementedError(absl::StrCat(
      "its 'descr' is ", Quoted(text.substr(0, 12)),
      "; supported are '|u1', '|i1', '<u2', '<i2', '<u4', '<i4' and '<i8'"));
}

// Parses the shape "(N,)".
absl::StatusOr<int64_t> LengthOfNpy(std::string_view header) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view text,
                           ValueOf(header, "shape"));
  const size_t comma = text.find(',');
  int64_t length = 0;
  if (absl::StartsWith(text, "(") && comma != text.npos &&
      absl::SimpleAtoi(text.substr(1, comma - 1), &length) && length >= 0 &&
      absl::StartsWith(
          absl::StripLeadingAsciiWhitespace(text.substr(comma + 1)), ")")) {
    return length;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("its 'shape' is ", Quoted(text.substr(0, 20)),
                   "; it must have one dimension, such as (1000,)"));
}

// Source: the .npy format, numpy/lib/format.py of NumPy.
absl::StatusOr<Layout> LayoutOfNpy(int fd, int64_t bytes) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr uint32_t kMostHeader = 1 << 16;
  char start[12] = {};
  TESSERA_RETURN_IF_ERROR(ReadAt(fd, 0,
                                 std::as_writable_bytes(std::span(start))
                                     .first(std::min<size_t>(12, bytes))));
  const int major = start[6];
  if (bytes < 12 || std::string_view(start, kMagic.size()) != kMagic ||
      major < 1 || major > 3) {
    return absl::InvalidArgumentError(
        "it is no array of NumPy of format version 1, 2 or 3");
  }
  uint32_t length = 0;
  std::memcpy(&length, start + 8, major == 1 ? 2 : 4);
  const int64_t begin = major == 1 ? 10 : 12;
  if (length > kMostHeader || begin + int64_t{length} > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("its header has ", length, " bytes, of ", bytes,
                     " of the file; ", kMostHeader, " is the most"));
  }
  std::string header(length, '\0');
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd, begin, std::as_writable_bytes(std::span(header))));
  Layout layout = {.offset = begin + length};
  TESSERA_ASSIGN_OR_RETURN(layout.type, TypeOfNpy(header));
  TESSERA_ASSIGN_OR_RETURN(layout.tokens, LengthOfNpy(header));
  return layout;
}

// True for 16 bytes and more of UTF-8 without control characters other than
// white space. `head` may be cut off anywhere. The bytes of tokens practically
// never look like that.
bool IsText(std::string_view head) {
  if (head.size() < 16) return false;
  for (size_t at = 0; at < head.size();) {
    const Character character = CharacterAt(head, at);
    if (!character.valid) return head.size() - at < 4;
    const bool is_control =
        character.code_point < 0x20 &&
        !absl::ascii_isspace(static_cast<char>(character.code_point));
    if (is_control || character.code_point == 0x7f) return false;
    at += character.length;
  }
  return true;
}

// The layout of a file of consecutive tokens, which may have the header of
// llm.c: 256 integers, of which the first three are a magic number, a version
// and the number of tokens. Source: dev/data/data_common.py of llm.c.
absl::StatusOr<Layout> LayoutOfPlain(int fd, int64_t bytes, TokenType type) {
  std::string head(static_cast<size_t>(std::min<int64_t>(bytes, 8000)), '\0');
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd, 0, std::as_writable_bytes(std::span(head))));
  if (IsText(head)) {
    return absl::InvalidArgumentError(
        "it is text, not tokens; give it a name such as *.txt or *.jsonl, and "
        "it is tokenised");
  }
  constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);
  int32_t start[3] = {};
  if (bytes < kHeaderBytes) return Layout{type};
  std::memcpy(start, head.data(), sizeof(start));
  const auto [magic, version, tokens] = start;
  const bool is_gpt2 = magic == 20240520, is_llama3 = magic == 20240801;
  if (!is_gpt2 && !is_llama3) return Layout{type};
  if (tokens < 0 || version != (is_gpt2 ? 1 : 7)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its header of llm.c has version ", version, " and ", tokens,
        " tokens; supported is version ", is_gpt2 ? 1 : 7));
  }
  return Layout{is_gpt2 ? TokenType::kU16 : TokenType::kU32, kHeaderBytes,
                tokens};
}

absl::StatusOr<Layout> LayoutOf(const std::string& path, int fd,
                                int64_t bytes) {
  switch (KindOf(path)) {
    case DataKind::kU16:
      return LayoutOfPlain(fd, bytes, TokenType::kU16);
    case DataKind::kU32:
      return LayoutOfPlain(fd, bytes, TokenType::kU32);
    case DataKind::kNpy:
      return LayoutOfNpy(fd, bytes);
    case DataKind::kIndexed: {
      TESSERA_ASSIGN_OR_RETURN(
          IndexedTokens index,
          ReadTokenIndex(absl::StrCat(PrefixOf(path), ".idx")));
      return Layout{index.type, 0, index.tokens, std::move(index.prompts)};
    }
    case DataKind::kText:
    case DataKind::kJsonLines:
      break;
  }
  return absl::InvalidArgumentError(
      "it is not a token file; such files are named *.u16, *.u32, *.bin, *.idx "
      "or *.npy");
}

// Returns the first stored token that is not in the vocabulary.
template <typename Stored>
std::optional<std::pair<size_t, int64_t>> Widen(const std::vector<char>& bytes,
                                                int64_t vocabulary,
                                                std::span<TokenId> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    const auto token = static_cast<int64_t>(stored);
    if (token < 0 || token >= vocabulary) return std::pair{i, token};
    tokens[i] = static_cast<TokenId>(token);
  }
  return std::nullopt;
}

std::optional<std::pair<size_t, int64_t>> Widen(TokenType type,
                                                const std::vector<char>& bytes,
                                                int64_t vocabulary,
                                                std::span<TokenId> tokens) {
  switch (type) {
    case TokenType::kU8:
      return Widen<uint8_t>(bytes, vocabulary, tokens);
    case TokenType::kI8:
      return Widen<int8_t>(bytes, vocabulary, tokens);
    case TokenType::kI16:
      return Widen<int16_t>(bytes, vocabulary, tokens);
    case TokenType::kU16:
      return Widen<uint16_t>(bytes, vocabulary, tokens);
    case TokenType::kI32:
      return Widen<int32_t>(bytes, vocabulary, tokens);
    case TokenType::kU32:
      return Widen<uint32_t>(bytes, vocabulary, tokens);
    case TokenType::kI64:
      return Widen<int64_t>(bytes, vocabulary, tokens);
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path,
                                          int64_t vocabulary) {
  const std::string data = KindOf(path) == DataKind::kIndexed
                               ? absl::StrCat(PrefixOf(path), ".bin")
                               : path;
  UniqueFd fd(open(data.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!fd.valid() || fstat(fd.get(), &status) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot open token file ", QuotedPath(data)));
  }
  const int64_t bytes = S_ISREG(status.st_mode) ? status.st_size : 0;
  absl::StatusOr<Layout> layout = LayoutOf(data, fd.get(), bytes);
  if (!layout.ok()) return Annotated(layout.status(), data);
  const int64_t width = BytesOf(layout->type);
  const int64_t left = bytes - layout->offset;
  if (left <= 0 || left % width != 0 ||
      (layout->tokens >= 0 && layout->tokens != left / width)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token file ", QuotedPath(data), " has ", bytes,
        " bytes; it must be a regular file of ",
        layout->tokens < 0
            ? absl::StrCat("at least one token, ", width, " bytes each")
            : absl::StrCat(layout->tokens, " tokens, at least one, of ", width,
                           " bytes each from byte ", layout->offset, " on")));
  }
  return TokenFile(data, std::move(fd), layout->offset, layout->type,
                   vocabulary, left / width, std::move(layout->prompts));
}

absl::Status TokenFile::Read(int64_t begin, std::span<TokenId> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (begin < 0 || count > token_count_ || begin > token_count_ - count) {
    return absl::OutOfRangeError(absl::StrCat(
        "token file ", QuotedPath(path_), ": ", count, " tokens from ", begin,
        " on are not among its ", token_count_));
  }
  const int64_t width = BytesOf(type_);
  std::vector<char> bytes(static_cast<size_t>(count * width));
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd_.get(), offset_ + begin * width,
             std::as_writable_bytes(std::span(bytes))),
      Annotate(_, absl::StrCat("token file ", QuotedPath(path_))));
  const auto wrong = Widen(type_, bytes, vocabulary_, tokens);
  if (!wrong.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "token file ", QuotedPath(path_), ": token ",
      begin + static_cast<int64_t>(wrong->first), " is ", wrong->second,
      "; the vocabulary has ", vocabulary_, ": was it made for another?"));
}

}  // namespace tessera::text
