#include "zero3/checkpoint/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
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

// Smaller blocks are buffered and written together.
constexpr size_t kSmallBytes = size_t{1} << 18;

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
