#include "zero3/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

namespace {

// Limits the number of open files, because file descriptors are scarce and
// reading an index again is cheap.
constexpr size_t kMostOpenFiles = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    std::string path, std::string_view part) {
  TESSERA_ASSIGN_OR_RETURN(CheckpointManifest manifest, ReadManifest(path));
  std::unique_ptr<CheckpointReader> reader(
      new CheckpointReader(std::move(path), std::move(manifest)));
  TESSERA_ASSIGN_OR_RETURN(reader->part_, reader->manifest_.Find(part),
                           Annotate(_, reader->path_));
  return reader;
}

absl::Status CheckpointReader::CheckRead(ParameterId parameter, StatePart part,
                                         int64_t begin, int64_t end,
                                         const StateArray& to) const {
  const ModelParameters& model = part_->model();
  TESSERA_RETURN_IF_ERROR(model.CheckId(parameter));
  const ModelParameter& spec = model[parameter];
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ", elements ", begin, " to ", end, " of the ",
        StatePartName(part), " of parameter ", Quoted(spec.name()), ": ", why));
  };
  const auto format = StateFormatOf(spec, part_->moment_kinds(), part);
  if (!format) return refuse("the checkpoint has none");
  if (begin < 0 || begin > end || end > spec.elements) {
    return refuse(absl::StrCat("it has elements 0 to ", spec.elements));
  }
  if (to.format != *format) {
    return refuse(absl::StrCat("they are stored as ", format->ToString(),
                               ", not as ", to.format.ToString(),
                               "; use the format of the checkpoint"));
  }
  if (begin < to.begin || end > to.begin + to.capacity) {
    return refuse(absl::StrCat("the array is for elements ", to.begin, " to ",
                               to.begin + to.capacity));
  }
  const int64_t block = std::max<int64_t>(format->block, 1);
  if (begin % block != 0 || to.begin % block != 0 ||
      (end % block != 0 && end != spec.elements)) {
    return refuse(absl::StrCat("blocks of ", block,
                               " cannot be cut; begin and end at multiples"));
  }
  return absl::OkStatus();
}

absl::StatusOr<const ShardFile*> CheckpointReader::FileOf(int64_t rank) {
  const auto found = files_.find(rank);
  if (found != files_.end()) return found->second.get();
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<ShardFile> file,
      ShardFile::Open(path_, manifest_.step, *part_, rank));
  if (files_.size() == kMostOpenFiles) files_.erase(files_.begin());
  return (files_[rank] = std::move(file)).get();
}

absl::Status CheckpointReader::ReadOverlap(const ShardFile& file,
                                           const BlockEntry& entry,
                                           int64_t begin, int64_t end,
                                           const StateArray& to) {
  const BlockRange& range = entry.range;
  begin = std::max(begin, range.begin);
  end = std::min(end, range.end);
  if (begin >= end) return absl::OkStatus();
  block_.resize(static_cast<size_t>(range.bytes()));
  TESSERA_RETURN_IF_ERROR(file.Read(entry, block_));
  CopyElements({range.format, range.begin, range.size(), block_.data()}, to,
               begin, end);
  return absl::OkStatus();
}

absl::Status CheckpointReader::Read(ParameterId parameter, StatePart part,
                                    int64_t begin, int64_t end,
                                    const StateArray& to) {
  TESSERA_RETURN_IF_ERROR(CheckRead(parameter, part, begin, end, to));
  for (const Extent& extent : part_->layout.Locate(parameter, begin, end)) {
    TESSERA_ASSIGN_OR_RETURN(const ShardFile* const file,
                             FileOf(extent.rank.value()));
    for (const BlockEntry& entry : file->Find(parameter, part)) {
      TESSERA_RETURN_IF_ERROR(
          ReadOverlap(*file, entry, extent.begin, extent.end, to));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
