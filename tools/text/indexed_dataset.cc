#include "tools/text/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::text {

namespace {

static_assert(std::endian::native == std::endian::little,
              "data sets are little-endian, and are read as they are");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr int64_t kMostPerPart = 1 << 17;  // Numbers.

// In the order of their codes, from 1.
constexpr TokenType kTypes[] = {TokenType::kU8, TokenType::kI8, TokenType::kI16,
                                TokenType::kI32, TokenType::kI64};
constexpr uint8_t kCodeOfU16 = 8;
constexpr uint8_t kCodeOfI32 = 4;

absl::StatusOr<TokenType> TypeOfCode(uint8_t code) {
  if (code >= 1 && code <= std::size(kTypes)) return kTypes[code - 1];
  if (code == kCodeOfU16) return TokenType::kU16;
  if (code == 6 || code == 7) {
    return absl::UnimplementedError(
        absl::StrCat("type ", code, " is of floating-point numbers"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("type ", code, " is none of 1 to 8"));
}

// Reads a file from front to back.
class Reader {
 public:
  explicit Reader(const std::string& path)
      : file_(path, std::ios::binary | std::ios::ate),
        bytes_(file_ ? static_cast<int64_t>(file_.tellg()) : -1) {
    file_.seekg(0);
  }

  // -1 if the size cannot be read.
  int64_t bytes() const { return bytes_; }

  void Skip(int64_t bytes) { file_.seekg(bytes, std::ios::cur); }

  template <typename T>
  absl::Status Read(std::span<T> values) {
    file_.read(reinterpret_cast<char*>(values.data()),
               static_cast<std::streamsize>(values.size_bytes()));
    if (file_) return absl::OkStatus();
    return absl::DataLossError("the file was truncated while it was read");
  }
  template <typename T>
  absl::StatusOr<T> ReadOne() {
    T value;
    TESSERA_RETURN_IF_ERROR(Read(std::span<T>(&value, 1)));
    return value;
  }

 private:
  std::ifstream file_;
  int64_t bytes_;
};

// Calls check(index, value) for each of the next `count` numbers.
template <typename T, typename Check>
absl::Status ForEach(Reader& reader, int64_t count, const Check& check) {
  std::vector<T> part;
  for (int64_t at = 0; at < count;) {
    part.resize(static_cast<size_t>(std::min(kMostPerPart, count - at)));
    TESSERA_RETURN_IF_ERROR(reader.Read(std::span<T>(part)));
    for (const T value : part) {
      TESSERA_RETURN_IF_ERROR(check(at, value));
      ++at;
    }
  }
  return absl::OkStatus();
}

absl::Status Invalid(std::string_view what, int64_t index, int64_t value,
                     std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", index, " is ", value, "; it must be ", allowed));
}

// Checks all sequences. Uses one reader for each of lengths, pointers and
// modes, which are in different parts of the file. `modes` is null if the index
// has none.
absl::Status CheckSequences(Reader& lengths, Reader& pointers, Reader* modes,
                            IndexedTokens& index) {
  const int64_t width = BytesOf(index.type);
  const int64_t most = std::numeric_limits<int64_t>::max() / width;
  std::vector<int64_t> begins;
  std::vector<int8_t> kinds;
  return ForEach<int32_t>(
      lengths, index.sequences, [&](int64_t i, int32_t length) -> absl::Status {
        if (i % kMostPerPart == 0) {
          begins.resize(
              static_cast<size_t>(std::min(kMostPerPart, index.sequences - i)));
          TESSERA_RETURN_IF_ERROR(pointers.Read(std::span<int64_t>(begins)));
          kinds.resize(begins.size());
          if (modes != nullptr) {
            TESSERA_RETURN_IF_ERROR(modes->Read(std::span<int8_t>(kinds)));
          }
        }
        if (length < 0) {
          return Invalid("the length of sequence", i, length, "0 or more");
        }
        const auto at = static_cast<size_t>(i % kMostPerPart);
        const int64_t begin = begins[at];
        if (begin != index.tokens * width) {
          return Invalid("the first byte of sequence", i, begin,
                         absl::StrCat(index.tokens * width,
                                      ", the end of the one before it"));
        }
        if (length > most - index.tokens) {
          return absl::InvalidArgumentError("there are more than 2^63 bytes");
        }
        if (kinds[at] != 0 && kinds[at] != 1) {
          return Invalid("the mode of sequence", i, kinds[at],
                         "0, or 1 for a prompt");
        }
        if (kinds[at] == 1) {
          index.prompts.Append({index.tokens, index.tokens + length});
        }
        index.tokens += length;
        return absl::OkStatus();
      });
}

absl::Status CheckDocuments(Reader& reader, const IndexedTokens& index) {
  int64_t last = 0;
  TESSERA_RETURN_IF_ERROR(ForEach<int64_t>(
      reader, index.documents + 1,
      [&](int64_t i, int64_t first) -> absl::Status {
        if (first < last || first > index.sequences || (i == 0 && first != 0)) {
          return Invalid("the first sequence of document", i, first,
                         i == 0 ? std::string("0")
                                : absl::StrCat(last, " to ", index.sequences));
        }
        last = first;
        return absl::OkStatus();
      }));
  if (last == index.sequences) return absl::OkStatus();
  return Invalid("the end of document", index.documents - 1, last,
                 absl::StrCat(index.sequences, ", the number of sequences"));
}

// The size in bytes of an index without modes.
int64_t PlainBytes(const IndexedTokens& index) {
  return kHeaderBytes + 12 * index.sequences + 8 * (index.documents + 1);
}

absl::StatusOr<IndexedTokens> ReadHeader(Reader& reader) {
  char magic[kMagic.size()];
  TESSERA_RETURN_IF_ERROR(reader.Read(std::span<char>(magic)));
  if (std::string_view(magic, sizeof(magic)) != kMagic) {
    return absl::InvalidArgumentError(
        "it does not begin with \"MMIDIDX\" and two zero bytes");
  }
  TESSERA_ASSIGN_OR_RETURN(const auto version, reader.ReadOne<uint64_t>());
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has version ", version, "; version 1 is supported"));
  }
  TESSERA_ASSIGN_OR_RETURN(const auto code, reader.ReadOne<uint8_t>());
  IndexedTokens index;
  TESSERA_ASSIGN_OR_RETURN(index.type, TypeOfCode(code));
  TESSERA_ASSIGN_OR_RETURN(const auto sequences, reader.ReadOne<uint64_t>());
  TESSERA_ASSIGN_OR_RETURN(const auto bounds, reader.ReadOne<uint64_t>());
  // Bounds each count separately, so that the sum cannot overflow.
  const auto left = static_cast<uint64_t>(reader.bytes() - kHeaderBytes);
  if (bounds < 1 || sequences > left / 12 || bounds > left / 8 ||
      (12 * sequences + 8 * bounds != left &&
       13 * sequences + 8 * bounds != left)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has ", reader.bytes(), " bytes, which is not what ", sequences,
        " sequences and ", bounds, " bounds of documents take: ", kHeaderBytes,
        " + 12 * sequences + 8 * bounds, and 1 byte a sequence for modes if "
        "it has any, and 1 bound or more"));
  }
  index.sequences = static_cast<int64_t>(sequences);
  index.documents = static_cast<int64_t>(bounds) - 1;
  return index;
}

absl::StatusOr<IndexedTokens> ReadIndex(const std::string& path) {
  Reader reader(path), pointers(path), modes(path);
  if (reader.bytes() < 0 || pointers.bytes() != reader.bytes()) {
    return absl::ErrnoToStatus(errno == 0 ? EIO : errno, "it cannot be read");
  }
  if (reader.bytes() < kHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has ", reader.bytes(), " bytes; its header takes ", kHeaderBytes));
  }
  TESSERA_ASSIGN_OR_RETURN(IndexedTokens index, ReadHeader(reader));
  pointers.Skip(kHeaderBytes + 4 * index.sequences);
  modes.Skip(PlainBytes(index));
  const bool has_modes = reader.bytes() != PlainBytes(index);
  TESSERA_RETURN_IF_ERROR(
      CheckSequences(reader, pointers, has_modes ? &modes : nullptr, index));
  TESSERA_RETURN_IF_ERROR(CheckDocuments(pointers, index));
  return index;
}

template <typename T>
void Append(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

absl::Status WriteAt(AtomicFile& file, int64_t& offset, std::string& bytes) {
  TESSERA_RETURN_IF_ERROR(file.Write(offset, std::as_bytes(std::span(bytes))));
  offset += static_cast<int64_t>(bytes.size());
  bytes.clear();
  return absl::OkStatus();
}

constexpr size_t kBufferBytes = size_t{1} << 22;

}  // namespace

int64_t BytesOf(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
    case TokenType::kU32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 1;
}

std::string_view PrefixOf(std::string_view path) {
  if (absl::EndsWith(path, ".idx") || absl::EndsWith(path, ".bin")) {
    path.remove_suffix(4);
  }
  return path;
}

absl::StatusOr<IndexedTokens> ReadTokenIndex(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      IndexedTokens index, ReadIndex(path),
      Annotate(_, absl::StrCat("index ", QuotedPath(path))));
  return index;
}

absl::StatusOr<IndexedDatasetWriter> IndexedDatasetWriter::Create(
    const std::string& prefix, int64_t vocabulary) {
  if (vocabulary < 1 || vocabulary > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data set ", QuotedPath(prefix), " for a vocabulary of ",
                     vocabulary, "; it must have 1 to 2^31 - 1 tokens"));
  }
  TESSERA_ASSIGN_OR_RETURN(AtomicFile bin,
                           AtomicFile::Create(absl::StrCat(prefix, ".bin")));
  return IndexedDatasetWriter(prefix, vocabulary, std::move(bin));
}

TokenType IndexedDatasetWriter::type() const {
  return vocabulary_ < 65500 ? TokenType::kU16 : TokenType::kI32;
}

absl::Status IndexedDatasetWriter::AddDocument(
    std::span<const TokenId> ids, std::span<const TokenRange> prompts) {
  if (ids.size() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("document ", documents(), " of ", QuotedPath(prefix_),
                     " has ", ids.size(), " tokens; 2^31 - 1 is the most"));
  }
  int64_t end = 0;
  for (const TokenRange& prompt : prompts) {
    if (prompt.begin < end || prompt.end <= prompt.begin ||
        prompt.end > static_cast<int64_t>(ids.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "document ", documents(), " of ", QuotedPath(prefix_), " has ",
          ids.size(), " tokens and a prompt from ", prompt.begin, " to ",
          prompt.end, "; prompts must not be empty, from ", end, " to ",
          ids.size()));
    }
    end = prompt.end;
  }
  const auto wrong = std::find_if(ids.begin(), ids.end(), [&](TokenId id) {
    return id < 0 || id >= vocabulary_;
  });
  if (wrong != ids.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", wrong - ids.begin(), " of document ",
                     documents(), " of ", QuotedPath(prefix_), " is ", *wrong,
                     "; the vocabulary has 0 to ", vocabulary_ - 1));
  }
  for (const TokenId id : ids) {
    if (type() == TokenType::kU16) {
      Append(static_cast<uint16_t>(id), buffer_);
    } else {
      Append(id, buffer_);
    }
  }
  int64_t at = 0;
  for (const TokenRange& prompt : prompts) {
    if (prompt.begin > at) AddSequence(prompt.begin - at, false);
    AddSequence(prompt.end - prompt.begin, true);
    at = prompt.end;
  }
  AddSequence(static_cast<int64_t>(ids.size()) - at, false);
  ends_.push_back(static_cast<int64_t>(lengths_.size()));
  tokens_ += static_cast<int64_t>(ids.size());
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

void IndexedDatasetWriter::AddSequence(int64_t length, bool is_prompt) {
  lengths_.push_back(static_cast<int32_t>(length));
  modes_.push_back(is_prompt ? 1 : 0);
  has_prompts_ = has_prompts_ || is_prompt;
}

absl::Status IndexedDatasetWriter::Flush() {
  return WriteAt(bin_, written_, buffer_);
}

absl::Status IndexedDatasetWriter::Finish() {
  TESSERA_RETURN_IF_ERROR(Flush());
  TESSERA_ASSIGN_OR_RETURN(AtomicFile idx,
                           AtomicFile::Create(absl::StrCat(prefix_, ".idx")));
  int64_t offset = 0;
  std::string bytes(kMagic);
  Append(kVersion, bytes);
  Append(type() == TokenType::kU16 ? kCodeOfU16 : kCodeOfI32, bytes);
  Append(static_cast<uint64_t>(lengths_.size()), bytes);
  Append(static_cast<uint64_t>(documents() + 1), bytes);
  const auto add = [&](auto value) -> absl::Status {
    Append(value, bytes);
    return bytes.size() < kBufferBytes ? absl::OkStatus()
                                       : WriteAt(idx, offset, bytes);
  };
  for (const int32_t length : lengths_) TESSERA_RETURN_IF_ERROR(add(length));
  int64_t begin = 0;
  for (const int32_t length : lengths_) {
    TESSERA_RETURN_IF_ERROR(add(begin));
    begin += length * BytesOf(type());
  }
  TESSERA_RETURN_IF_ERROR(add(int64_t{0}));
  for (const int64_t end : ends_) TESSERA_RETURN_IF_ERROR(add(end));
  if (has_prompts_) {
    for (const int8_t mode : modes_) TESSERA_RETURN_IF_ERROR(add(mode));
  }
  TESSERA_RETURN_IF_ERROR(WriteAt(idx, offset, bytes));
  TESSERA_RETURN_IF_ERROR(bin_.Commit());
  return idx.Commit();
}

}  // namespace tessera::text
