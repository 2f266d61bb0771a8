#include "zero3/checkpoint/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "offload/file/async_file.h"
#include "offload/file/crc32c.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

namespace {

constexpr std::string_view kHeaderMagic = "TessStat";
constexpr std::string_view kFooterMagic = "TessEnd.";
constexpr size_t kHeaderCrc = kShardHeaderBytes - 4;
constexpr size_t kFooterCrc = 20;
constexpr size_t kFooterMagicAt = 24;

// Writes the fields of the format in order.
class Putter {
 public:
  explicit Putter(std::byte* at) : at_(at) {}

  template <typename T>
  Putter& Put(int64_t value) {
    StoreLittleEndian(static_cast<T>(value), at_);
    at_ += sizeof(T);
    return *this;
  }
  Putter& Put(std::string_view text) {
    for (const char c : text) *at_++ = static_cast<std::byte>(c);
    return *this;
  }

 private:
  std::byte* at_;
};

class Taker {
 public:
  explicit Taker(const std::byte* at) : at_(at) {}

  // Values above 2^63-1 become negative, and are rejected as negative values.
  template <typename T>
  int64_t Take() {
    const T value = LoadLittleEndian<T>(at_);
    at_ += sizeof(T);
    return static_cast<int64_t>(value);
  }

 private:
  const std::byte* at_;
};

bool Begins(std::span<const std::byte> bytes, std::string_view magic) {
  return std::equal(
      magic.begin(), magic.end(), bytes.begin(),
      [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
}

absl::Status Wrong(std::string_view what) {
  return absl::InvalidArgumentError(what);
}

absl::Status CheckCrc(std::string_view what, std::span<const std::byte> bytes,
                      uint32_t expected) {
  const uint32_t crc = offload::Crc32c(bytes);
  if (crc == expected) return absl::OkStatus();
  return Wrong(absl::StrCat(what, " has the checksum ", absl::Hex(crc),
                            ", but should have ", absl::Hex(expected)));
}

bool IsAllowed(const StateFormat& format) {
  if (!IsValid(format.dtype)) return false;
  if (format.block == 0) return true;
  return format.dtype == DType::kU8 &&
         offload::CheckMomentFormat(
             offload::MomentFormat::Blockwise8(format.block))
             .ok();
}

// The encoding of an entry in the file.
struct RawEntry {
  BlockEntry entry;
  int64_t zero = 0;
  int64_t bytes = 0;
};

RawEntry TakeEntry(const std::byte* at) {
  Taker taker(at);
  RawEntry raw;
  BlockRange& range = raw.entry.range;
  range.parameter = ParameterId(taker.Take<uint32_t>());
  range.part = static_cast<StatePart>(taker.Take<uint8_t>());
  range.format.dtype = static_cast<DType>(taker.Take<uint8_t>());
  raw.zero = taker.Take<uint16_t>();
  range.format.block = taker.Take<uint32_t>();
  raw.entry.crc32c = static_cast<uint32_t>(taker.Take<uint32_t>());
  range.begin = taker.Take<uint64_t>();
  range.end = taker.Take<uint64_t>();
  raw.entry.offset = taker.Take<uint64_t>();
  raw.bytes = taker.Take<uint64_t>();
  return raw;
}

// `offset` is the required begin of the block.
absl::Status CheckEntry(const RawEntry& raw, int64_t offset,
                        int64_t index_offset) {
  const BlockRange& range = raw.entry.range;
  if (!IsValid(range.part) || !IsAllowed(range.format) || raw.zero != 0) {
    return Wrong("an unknown part or format");
  }
  if (range.begin < 0 || range.begin >= range.end ||
      range.end > kMaxLayoutElements || range.bytes() > kMaxShardBlockBytes ||
      range.bytes() != raw.bytes) {
    return Wrong(absl::StrCat("elements ", range.begin, " to ", range.end,
                              " in ", raw.bytes, " bytes; allowed: at most ",
                              kMaxShardBlockBytes));
  }
  if (raw.entry.offset != offset || raw.bytes > index_offset - offset) {
    return Wrong(absl::StrCat("offset ", raw.entry.offset, " instead of ",
                              offset, ", or an end past the index"));
  }
  return absl::OkStatus();
}

bool Follows(const BlockRange& a, const BlockRange& b) {
  const auto key = [](const BlockRange& range) {
    return std::tuple(range.parameter, range.part);
  };
  return key(a) < key(b) ||
         (key(a) == key(b) && a.end <= b.begin && a.format == b.format);
}

}  // namespace

std::array<std::byte, kShardHeaderBytes> FormatShardHeader(
    const ShardHeader& header) {
  std::array<std::byte, kShardHeaderBytes> bytes = {};
  Putter(bytes.data())
      .Put(kHeaderMagic)
      .Put<uint32_t>(kShardVersion)
      .Put<uint32_t>(header.rank)
      .Put<uint32_t>(header.ranks)
      .Put<uint64_t>(header.step);
  Putter(bytes.data() + kHeaderCrc)
      .Put<uint32_t>(offload::Crc32c(std::span(bytes).first(kHeaderCrc)));
  return bytes;
}

absl::StatusOr<ShardHeader> ParseShardHeader(
    std::span<const std::byte, kShardHeaderBytes> bytes) {
  if (!Begins(bytes, kHeaderMagic)) return Wrong("not a shard of a checkpoint");
  Taker taker(bytes.data() + kHeaderMagic.size());
  const int64_t version = taker.Take<uint32_t>();
  TESSERA_RETURN_IF_ERROR(
      CheckCrc("the header", std::span(bytes).first(kHeaderCrc),
               LoadLittleEndian<uint32_t>(bytes.data() + kHeaderCrc)));
  if (version != kShardVersion) {
    return Wrong(absl::StrCat("version ", version, " of the format; ",
                              kShardVersion, " can be read"));
  }
  ShardHeader header;
  header.rank = taker.Take<uint32_t>();
  header.ranks = taker.Take<uint32_t>();
  header.step = taker.Take<uint64_t>();
  if (header.rank >= header.ranks || header.ranks > kMaxShardRanks ||
      header.step < 0) {
    return Wrong(absl::StrCat("rank ", header.rank, " of ", header.ranks,
                              " at step ", header.step, " cannot be"));
  }
  return header;
}

std::vector<std::byte> FormatShardIndex(std::span<const BlockEntry> entries) {
  std::vector<std::byte> bytes(entries.size() *
                               static_cast<size_t>(kShardEntryBytes));
  std::byte* at = bytes.data();
  for (const BlockEntry& entry : entries) {
    const BlockRange& range = entry.range;
    Putter(at)
        .Put<uint32_t>(range.parameter.value())
        .Put<uint8_t>(static_cast<int64_t>(range.part))
        .Put<uint8_t>(static_cast<int64_t>(range.format.dtype))
        .Put<uint16_t>(0)
        .Put<uint32_t>(range.format.block)
        .Put<uint32_t>(entry.crc32c)
        .Put<uint64_t>(range.begin)
        .Put<uint64_t>(range.end)
        .Put<uint64_t>(entry.offset)
        .Put<uint64_t>(range.bytes());
    at += kShardEntryBytes;
  }
  return bytes;
}

absl::StatusOr<std::vector<BlockEntry>> ParseShardIndex(
    std::span<const std::byte> bytes, const ShardFooter& footer) {
  if (static_cast<int64_t>(bytes.size()) / kShardEntryBytes != footer.entries ||
      static_cast<int64_t>(bytes.size()) % kShardEntryBytes != 0) {
    return Wrong(absl::StrCat("an index of ", bytes.size(), " bytes for ",
                              footer.entries, " blocks"));
  }
  TESSERA_RETURN_IF_ERROR(CheckCrc("the index", bytes, footer.index_crc32c));
  std::vector<BlockEntry> entries;
  entries.reserve(static_cast<size_t>(footer.entries));
  int64_t offset = kShardHeaderBytes;
  for (int64_t i = 0; i < footer.entries; ++i) {
    const RawEntry raw = TakeEntry(bytes.data() + i * kShardEntryBytes);
    absl::Status status = CheckEntry(raw, offset, footer.index_offset);
    if (status.ok() && i > 0 &&
        !Follows(entries.back().range, raw.entry.range)) {
      status = Wrong("elements that do not follow those of the block before");
    }
    TESSERA_RETURN_IF_ERROR(status, Annotate(_, absl::StrCat("block ", i)));
    entries.push_back(raw.entry);
    offset += raw.bytes;
  }
  if (offset != footer.index_offset) {
    return Wrong(absl::StrCat("blocks end at offset ", offset,
                              ", the index begins at ", footer.index_offset));
  }
  return entries;
}

std::array<std::byte, kShardFooterBytes> FormatShardFooter(
    const ShardFooter& footer) {
  std::array<std::byte, kShardFooterBytes> bytes = {};
  Putter(bytes.data())
      .Put<uint64_t>(footer.index_offset)
      .Put<uint64_t>(footer.entries)
      .Put<uint32_t>(footer.index_crc32c);
  Putter(bytes.data() + kFooterCrc)
      .Put<uint32_t>(offload::Crc32c(std::span(bytes).first(kFooterCrc)))
      .Put(kFooterMagic);
  return bytes;
}

absl::StatusOr<ShardFooter> ParseShardFooter(
    std::span<const std::byte, kShardFooterBytes> bytes, int64_t file_bytes) {
  if (!Begins(std::span(bytes).subspan(kFooterMagicAt), kFooterMagic)) {
    return Wrong("no footer of a shard: the file was truncated or overwritten");
  }
  TESSERA_RETURN_IF_ERROR(
      CheckCrc("the footer", std::span(bytes).first(kFooterCrc),
               LoadLittleEndian<uint32_t>(bytes.data() + kFooterCrc)));
  Taker taker(bytes.data());
  ShardFooter footer;
  footer.index_offset = taker.Take<uint64_t>();
  footer.entries = taker.Take<uint64_t>();
  footer.index_crc32c = static_cast<uint32_t>(taker.Take<uint32_t>());
  const int64_t room = file_bytes - kShardHeaderBytes - kShardFooterBytes;
  if (footer.entries < 0 || footer.entries > room / kShardEntryBytes ||
      footer.index_offset !=
          file_bytes - kShardFooterBytes - footer.entries * kShardEntryBytes) {
    return Wrong(absl::StrCat("an index of ", footer.entries,
                              " blocks at offset ", footer.index_offset,
                              " in a file of ", file_bytes, " bytes"));
  }
  return footer;
}

namespace {

// The blocks that a shard must have, in pieces of any length.
struct ExpectedRun {
  ParameterId parameter;
  StatePart part;
  StateFormat format;
  int64_t begin;
  int64_t end;
};

std::vector<ExpectedRun> ExpectedRuns(const CheckpointPart& part,
                                      int64_t rank) {
  std::vector<ExpectedRun> runs;
  for (const ModelParameter& parameter : part.model().all()) {
    const Extent extent =
        part.layout.ExtentOf(topology::Rank(rank), parameter.id);
    if (extent.size() == 0) continue;
    for (const StatePart state : kAllStateParts) {
      const auto format = StateFormatOf(parameter, part.moment_kinds(), state);
      if (!format) continue;
      runs.push_back({parameter.id, state, *format, extent.begin, extent.end});
    }
  }
  return runs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardFile>> ShardFile::Open(
    const std::string& directory, int64_t step, const CheckpointPart& part,
    int64_t rank) {
  std::unique_ptr<ShardFile> file(new ShardFile(
      absl::StrCat(directory, "/", ShardFileName(part.name, rank)), part,
      rank));
  TESSERA_RETURN_IF_ERROR(file->OpenFile());
  TESSERA_RETURN_IF_ERROR(file->ReadIndex(step));
  TESSERA_RETURN_IF_ERROR(file->CheckBlocks());
  return file;
}

absl::Status ShardFile::Damaged(int64_t offset, std::string_view what) const {
  return absl::DataLossError(
      absl::StrCat(path_, " at offset ", offset, ": ", what,
                   "; the file is damaged: load an earlier checkpoint"));
}

absl::Status ShardFile::OpenFile() {
  fd_ = UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_.valid()) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot open ", path_,
                            ", a shard of the checkpoint; if it is lost, load "
                            "an earlier checkpoint"));
  }
  struct stat file;
  if (fstat(fd_.get(), &file) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot examine ", path_));
  }
  const int64_t bytes = part_.files[static_cast<size_t>(rank_)].bytes;
  if (file.st_size != bytes || bytes < kShardHeaderBytes + kShardFooterBytes) {
    return Damaged(std::min<int64_t>(file.st_size, bytes),
                   absl::StrCat("it has ", file.st_size,
                                " bytes, but the manifest says ", bytes));
  }
  return absl::OkStatus();
}

absl::Status ShardFile::ReadAt(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(fd_.get(), to.data(), to.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return offload::IoError(errno, "read", static_cast<int64_t>(to.size()),
                              offset, path_);
    }
    if (got == 0) return Damaged(offset, "it ends here");
    to = to.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status ShardFile::ReadIndex(int64_t step) {
  const CheckpointFile& expected = part_.files[static_cast<size_t>(rank_)];
  std::array<std::byte, kShardHeaderBytes> head;
  TESSERA_RETURN_IF_ERROR(ReadAt(0, head));
  header_crc_ = offload::Crc32c(head);
  const ShardHeader wanted = {step, rank_, part_.layout.ranks()};
  const auto header = ParseShardHeader(head);
  if (!header.ok()) return Damaged(0, header.status().message());
  if (*header != wanted) {
    return Damaged(0, absl::StrCat("it is of rank ", header->rank, " of ",
                                   header->ranks, " at step ", header->step,
                                   ", a file of another checkpoint"));
  }
  std::array<std::byte, kShardFooterBytes> foot;
  const int64_t footer_offset = expected.bytes - kShardFooterBytes;
  TESSERA_RETURN_IF_ERROR(ReadAt(footer_offset, foot));
  const auto footer = ParseShardFooter(foot, expected.bytes);
  if (!footer.ok()) return Damaged(footer_offset, footer.status().message());
  if (footer->index_crc32c != expected.index_crc32c) {
    return Damaged(footer_offset,
                   "it is not the file that the manifest describes");
  }
  tail_.resize(static_cast<size_t>(expected.bytes - footer->index_offset));
  TESSERA_RETURN_IF_ERROR(ReadAt(footer->index_offset, tail_));
  auto entries = ParseShardIndex(
      std::span(tail_).first(tail_.size() - kShardFooterBytes), *footer);
  if (!entries.ok()) {
    return Damaged(footer->index_offset, entries.status().message());
  }
  entries_ = *std::move(entries);
  return absl::OkStatus();
}

absl::Status ShardFile::CheckBlocks() const {
  size_t next = 0;
  const auto wrong = [&](const ExpectedRun& run, int64_t element) {
    const ModelParameter& parameter = part_.model()[run.parameter];
    return Damaged(
        next < entries_.size() ? entries_[next].offset : kShardHeaderBytes,
        absl::StrCat("element ", element, " of the ", StatePartName(run.part),
                     " of parameter ", Quoted(parameter.name()), " as ",
                     run.format.ToString(), " is missing"));
  };
  for (const ExpectedRun& run : ExpectedRuns(part_, rank_)) {
    for (int64_t element = run.begin; element < run.end; ++next) {
      if (next == entries_.size()) return wrong(run, element);
      const BlockRange& range = entries_[next].range;
      const bool is_whole = run.format.block == 0 || range.end == run.end ||
                            (range.end - run.begin) % run.format.block == 0;
      if (range.parameter != run.parameter || range.part != run.part ||
          range.format != run.format || range.begin != element ||
          range.end > run.end || !is_whole) {
        return wrong(run, element);
      }
      element = range.end;
    }
  }
  if (next == entries_.size()) return absl::OkStatus();
  return Damaged(entries_[next].offset, "a block that no rank should have");
}

std::span<const BlockEntry> ShardFile::Find(ParameterId parameter,
                                            StatePart part) const {
  struct Less {
    using Key = std::tuple<ParameterId, StatePart>;
    static Key Of(const BlockEntry& entry) {
      return {entry.range.parameter, entry.range.part};
    }
    bool operator()(const BlockEntry& a, const Key& b) const {
      return Of(a) < b;
    }
    bool operator()(const Key& a, const BlockEntry& b) const {
      return a < Of(b);
    }
  };
  const auto [begin, end] = std::equal_range(
      entries_.begin(), entries_.end(), Less::Key(parameter, part), Less());
  return {begin, end};
}

absl::Status ShardFile::Read(const BlockEntry& entry,
                             std::span<std::byte> to) const {
  TESSERA_RETURN_IF_ERROR(ReadAt(entry.offset, to));
  if (offload::Crc32c(to) == entry.crc32c) return absl::OkStatus();
  const BlockRange& range = entry.range;
  return Damaged(
      entry.offset,
      absl::StrCat("elements ", range.begin, " to ", range.end, " of the ",
                   StatePartName(range.part), " of parameter ",
                   Quoted(part_.model()[range.parameter].name()),
                   " do not have their checksum"));
}

uint32_t ShardFile::Crc32c() const {
  uint32_t crc = header_crc_;
  for (const BlockEntry& entry : entries_) {
    crc = offload::CombineCrc32c(crc, entry.crc32c,
                                 static_cast<uint64_t>(entry.range.bytes()));
  }
  return offload::ExtendCrc32c(crc, tail_);
}

namespace {

// Smaller blocks are buffered and written together.
constexpr size_t kSmallBytes = size_t{1} << 18;

}  // namespace

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(
    FileCalls& calls, std::string path, const ShardHeader& header) {
  TESSERA_ASSIGN_OR_RETURN(const int fd, calls.Create(path));
  std::unique_ptr<ShardWriter> writer(
      new ShardWriter(calls, std::move(path), fd));
  TESSERA_RETURN_IF_ERROR(writer->Append(FormatShardHeader(header)));
  return writer;
}

ShardWriter::~ShardWriter() {
  if (fd_ >= 0) calls_.Close(fd_, path_).IgnoreError();
}

absl::Status ShardWriter::Add(const BlockRange& range,
                              std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size != range.bytes() || size == 0 || size > kMaxShardBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": a block of ", size, " bytes for elements ",
                     range.begin, " to ", range.end, ", which take ",
                     range.bytes(), "; allowed: 1 to ", kMaxShardBlockBytes));
  }
  const uint32_t crc = offload::Crc32c(bytes);
  entries_.push_back({range, bytes_, crc});
  crc32c_ = offload::CombineCrc32c(crc32c_, crc, bytes.size());
  bytes_ += size;
  return Keep(bytes);
}

// Header, index and footer.
absl::Status ShardWriter::Append(std::span<const std::byte> bytes) {
  crc32c_ = offload::ExtendCrc32c(crc32c_, bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  return Keep(bytes);
}

absl::Status ShardWriter::Keep(std::span<const std::byte> bytes) {
  if (small_.size() + bytes.size() > kSmallBytes) {
    TESSERA_RETURN_IF_ERROR(Flush());
  }
  if (bytes.size() > kSmallBytes) return Write(bytes);
  small_.insert(small_.end(), bytes.begin(), bytes.end());
  return absl::OkStatus();
}

absl::Status ShardWriter::Write(std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(calls_.Write(fd_, bytes, written_, path_));
  written_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status ShardWriter::Flush() {
  if (small_.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Write(small_));
  small_.clear();
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> ShardWriter::Finish() {
  const std::vector<std::byte> index = FormatShardIndex(entries_);
  const ShardFooter footer = {.index_offset = bytes_,
                              .entries = static_cast<int64_t>(entries_.size()),
                              .index_crc32c = offload::Crc32c(index)};
  TESSERA_RETURN_IF_ERROR(Append(index));
  TESSERA_RETURN_IF_ERROR(Append(FormatShardFooter(footer)));
  TESSERA_RETURN_IF_ERROR(Flush());
  TESSERA_RETURN_IF_ERROR(calls_.Sync(fd_, path_));
  TESSERA_RETURN_IF_ERROR(calls_.Close(std::exchange(fd_, -1), path_));
  return CheckpointFile{
      .bytes = bytes_, .crc32c = crc32c_, .index_crc32c = footer.index_crc32c};
}

}  // namespace tessera::zero3
