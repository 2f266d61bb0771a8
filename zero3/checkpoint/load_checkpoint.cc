#include "zero3/checkpoint/load_checkpoint.h"

#include <cstddef>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/checkpoint/compare_models.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/shard_file.h"
#include "zero3/checkpoint/shard_format.h"
#include "zero3/checkpoint/state_blocks.h"

namespace tessera::zero3 {

namespace {

absl::Status VerifyFile(const std::string& path, int64_t step,
                        const CheckpointPart& part, int64_t rank) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ShardFile> file,
                           ShardFile::Open(path, step, part, rank));
  std::vector<std::byte> block;
  for (const BlockEntry& entry : file->entries()) {
    block.resize(static_cast<size_t>(entry.range.bytes()));
    TESSERA_RETURN_IF_ERROR(file->Read(entry, block));
  }
  if (file->Crc32c() == part.files[static_cast<size_t>(rank)].crc32c) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(file->path(),
                   " does not have the checksum of the manifest; load "
                   "an earlier checkpoint"));
}

absl::Status CheckNames(const std::string& path,
                        const CheckpointManifest& manifest) {
  std::set<std::string> expected = {std::string(kManifestName)};
  for (const CheckpointPart& part : manifest.parts) {
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      expected.insert(ShardFileName(part.name, rank));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ListDirectory(path));
  for (const std::string& name : names) {
    if (expected.count(name) > 0) continue;
    return absl::DataLossError(
        absl::StrCat(path, " has ", Quoted(name),
                     ", which is not a file of the checkpoint"));
  }
  return absl::OkStatus();
}

VerifiedBytes TotalOf(const CheckpointManifest& manifest) {
  VerifiedBytes total;
  for (const CheckpointPart& part : manifest.parts) {
    for (const CheckpointFile& file : part.files) {
      ++total.all_files;
      total.all_bytes += file.bytes;
    }
  }
  return total;
}

// Ranks read at different speeds.
constexpr absl::Duration kTimeout = absl::Minutes(30);

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenFor(
    const std::string& path, const std::string& part,
    const ShardedState& state) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader,
                           CheckpointReader::Open(path, part));
  TESSERA_RETURN_IF_ERROR(
      CompareModels(reader->part(), state.layout().model(), MomentsOf(state)),
      Annotate(_, path));
  return reader;
}

// The identity of a checkpoint, the same on every rank.
absl::StatusOr<std::string> IdentityOf(const CheckpointManifest& manifest) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
  // The manifest's text up to the end of the line of its checksum.
  return absl::StrCat(
      "step ", manifest.step, " with the manifest ",
      text.substr(0, text.find(",")).substr(text.find(": ") + 2));
}

absl::Status AgreeOnIdentity(collectives::Communicator& world,
                             std::string_view identity) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      collectives::ExchangeTexts(world, identity, kTimeout));
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks load different checkpoints: rank 0 ", texts[0], ", rank ", rank,
        " ", texts[rank], "; give all the same directory"));
  }
  return absl::OkStatus();
}

absl::Status LoadPart(CheckpointReader& reader, ParameterId saved,
                      ParameterId id, StatePart part, ShardedState& state) {
  const Extent extent = state.layout().ExtentOf(state.rank(), id);
  TESSERA_ASSIGN_OR_RETURN(
      OpenPart open,
      OpenPart::Open(state, id, part, OpenPart::Access::kOverwrite));
  absl::Status status =
      reader.Read(saved, part, extent.begin, extent.end, open.array());
  status.Update(open.Close(/*changed=*/true));
  return status;
}

absl::Status LoadElements(CheckpointReader& reader, ShardedState& state) {
  for (const ModelParameter& parameter : state.layout().model().all()) {
    const Extent extent = state.layout().ExtentOf(state.rank(), parameter.id);
    if (extent.size() == 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const ParameterId saved,
                             reader.part().model().Find(parameter.name()));
    for (const StatePart part : kAllStateParts) {
      if (!StateFormatOf(parameter, MomentsOf(state), part)) continue;
      TESSERA_RETURN_IF_ERROR(
          LoadPart(reader, saved, parameter.id, part, state));
    }
  }
  return state.optimizer().Settle();
}

}  // namespace

absl::Status VerifyCheckpoint(
    const std::string& path,
    absl::FunctionRef<void(const VerifiedBytes&)> progress) {
  TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                           ReadManifest(path));
  absl::Status first = CheckNames(path, manifest);
  VerifiedBytes verified = TotalOf(manifest);
  int64_t damaged = 0;
  for (const CheckpointPart& part : manifest.parts) {
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      const absl::Status status = VerifyFile(path, manifest.step, part, rank);
      damaged += status.ok() ? 0 : 1;
      first.Update(status);
      ++verified.files;
      verified.bytes += part.files[static_cast<size_t>(rank)].bytes;
      progress(verified);
    }
  }
  if (damaged < 2) return first;
  return absl::Status(first.code(), absl::StrCat(first.message(), " (", damaged,
                                                 " files are damaged)"));
}

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& path,
                                                const CheckpointGroups& groups,
                                                ShardedState& state) {
  collectives::Communicator* const world =
      groups.world == nullptr ? groups.shard : groups.world;
  if (world == nullptr) {
    return absl::InvalidArgumentError(
        "loading a checkpoint needs the shard group of the state");
  }
  auto reader = OpenFor(path, groups.part, state);
  const absl::StatusOr<std::string> identity =
      reader.ok() ? IdentityOf((*reader)->manifest()) : reader.status();
  TESSERA_RETURN_IF_ERROR(
      collectives::AgreeOnStatus(*world, identity.status(), kTimeout));
  TESSERA_RETURN_IF_ERROR(AgreeOnIdentity(*world, *identity));
  TESSERA_RETURN_IF_ERROR(collectives::AgreeOnStatus(
      *world, LoadElements(**reader, state), kTimeout));
  const CheckpointPart& part = (*reader)->part();
  state.scaler().Restore(part.loss_scale, part.steps_since_scale_change);
  TESSERA_RETURN_IF_ERROR(state.FinishRestoring((*reader)->manifest().step));
  return LoadedCheckpoint{(*reader)->manifest().step, part.metadata};
}

}  // namespace tessera::zero3
