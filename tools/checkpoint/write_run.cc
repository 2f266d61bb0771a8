#include "tools/checkpoint/write_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/manifest_json.h"
#include "zero3/checkpoint/shard_writer.h"

namespace tessera::tools {
namespace {

using zero3::BlockRange;
using zero3::StatePart;

constexpr int64_t kBlockElements = int64_t{1} << 20;  // Of whole moment blocks.

class RunWriter {
 public:
  RunWriter(zero3::FileCalls& calls, const std::string& directory,
            const CheckpointPlan& plan, BlockSource source)
      : calls_(calls),
        plan_(plan),
        source_(source),
        directory_(calls, directory) {}

  absl::Status Write() {
    TESSERA_ASSIGN_OR_RETURN(std::vector<PlannedPart> parts, PlanParts(plan_));
    zero3::CheckpointManifest manifest = {.step = plan_.optimizer_steps,
                                          .world = plan_.mesh.world_size()};
    TESSERA_RETURN_IF_ERROR(directory_.Begin(manifest.step));
    absl::Status status = WriteParts(parts, manifest);
    if (status.ok()) status = Commit(manifest);
    if (!status.ok()) directory_.Discard(manifest.step).IgnoreError();
    return status;
  }

 private:
  absl::Status WriteParts(std::vector<PlannedPart>& parts,
                          zero3::CheckpointManifest& manifest) {
    for (PlannedPart& planned : parts) {
      for (int64_t rank = 0; rank < planned.part.layout.ranks(); ++rank) {
        TESSERA_ASSIGN_OR_RETURN(planned.part.files.emplace_back(),
                                 WriteFile(planned, topology::Rank(rank)));
      }
      manifest.parts.push_back(std::move(planned.part));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<zero3::CheckpointFile> WriteFile(const PlannedPart& planned,
                                                  topology::Rank rank) {
    const zero3::StateLayout& layout = planned.part.layout;
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<zero3::ShardWriter> writer,
        zero3::ShardWriter::Create(
            calls_,
            absl::StrCat(directory_.writing_path(plan_.optimizer_steps), "/",
                         zero3::ShardFileName(planned.part.name, rank.value())),
            {.step = plan_.optimizer_steps,
             .rank = rank.value(),
             .ranks = layout.ranks()}));
    for (const zero3::Parameter& parameter : layout.model().all()) {
      const zero3::Extent extent = layout.ExtentOf(rank, parameter.id);
      for (const StatePart part : zero3::kAllStateParts) {
        const auto format =
            zero3::StateFormatOf(parameter, plan_.moments, part);
        if (!format) continue;
        TESSERA_RETURN_IF_ERROR(WriteBlocks(
            planned.tensors[static_cast<size_t>(parameter.id.value())],
            {parameter.id, part, *format, extent.begin, extent.end}, *writer));
      }
    }
    return writer->Finish();
  }

  absl::Status WriteBlocks(const train::HeldTensor& held, const BlockRange& all,
                           zero3::ShardWriter& writer) {
    BlockRange block = all;
    for (; block.begin < all.end; block.begin = block.end) {
      block.end = std::min(block.begin + kBlockElements, all.end);
      bytes_.assign(static_cast<size_t>(block.bytes()), std::byte{0});
      TESSERA_RETURN_IF_ERROR(
          source_(held, block.part,
                  {block.format, block.begin, block.size(), bytes_.data()}));
      TESSERA_RETURN_IF_ERROR(writer.Add(block, bytes_));
    }
    return absl::OkStatus();
  }

  absl::Status Commit(const zero3::CheckpointManifest& manifest) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text,
                             zero3::FormatManifest(manifest));
    return directory_.Commit(manifest.step, text);
  }

  zero3::FileCalls& calls_;
  const CheckpointPlan& plan_;
  const BlockSource source_;
  zero3::CheckpointDirectory directory_;
  std::vector<std::byte> bytes_;
};

}  // namespace

absl::StatusOr<std::string> WriteRun(zero3::FileCalls& calls,
                                     const std::string& directory,
                                     const CheckpointPlan& plan, BlockSource source) {
  const std::string path =
      absl::StrCat(directory, "/", zero3::CheckpointName(plan.optimizer_steps));
  if (access(path.c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(
        QuotedPath(path), " is there already; give another directory"));
  }
  TESSERA_RETURN_IF_ERROR(RunWriter(calls, directory, plan, source).Write());
  return path;
}

}  // namespace tessera::tools
