#include "zero3/checkpoint/shard_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "offload/file/async_file.h"
#include "offload/file/crc32c.h"

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
  for (const Parameter& parameter : part.model().all()) {
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
    return Damaged(footer_offset, "it is not the file that the manifest means");
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
    const Parameter& parameter = part_.model()[run.parameter];
    return Damaged(
        next < entries_.size() ? entries_[next].offset : kShardHeaderBytes,
        absl::StrCat("element ", element, " of the ", StatePartName(run.part),
                     " of parameter ", Quoted(parameter.name()), " as ",
                     run.format.ToString(), " should be there, but is not"));
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

}  // namespace tessera::zero3
