#include "zero3/checkpoint/checkpoint_writer.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/checkpoint/manifest_json.h"
#include "zero3/checkpoint/snapshot.h"

namespace tessera::zero3 {
namespace {

absl::Status CheckArguments(const CheckpointGroups& groups,
                            const CheckpointWriterOptions& options) {
  if (groups.shard == nullptr) {
    return absl::InvalidArgumentError(
        "a checkpoint needs the shard group of the state");
  }
  TESSERA_RETURN_IF_ERROR(CheckPartName(groups.part));
  if (options.directory.empty()) {
    return absl::InvalidArgumentError(
        "directory is empty; give the one that all ranks share");
  }
  if (options.keep < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep is ", options.keep,
                     "; allowed: 0 (all) or a number of checkpoints"));
  }
  constexpr int64_t kMostElements = kMaxShardBlockBytes / 16;
  if (options.block_elements < 1 || options.block_elements > kMostElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_elements is ", options.block_elements,
                     "; allowed: 1 to ", kMostElements));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout is ", absl::FormatDuration(options.timeout),
                     "; it must be more than 0"));
  }
  return absl::OkStatus();
}

// What the manifest will say of the part.
absl::StatusOr<std::string> Describe(const StateShare& share,
                                     ShardedState& state, std::string part,
                                     CheckpointMetadata metadata) {
  const LossScaler& scaler = state.scaler();
  return FormatPart({.name = std::move(part),
                     .stage = state.options().stage,
                     .layout = share.layout,
                     .moments = state.options().moments,
                     .moment_count = MomentsOf(state).count,
                     .loss_scale = scaler.scale(),
                     .steps_since_scale_change = scaler.steps_since_change(),
                     .metadata = std::move(metadata)});
}

}  // namespace

void PendingCheckpoint::Outcome::Set(absl::StatusOr<std::string> value) {
  const std::lock_guard lock(mutex);
  result = std::move(value);
  is_set.notify_all();
}

absl::StatusOr<std::string> PendingCheckpoint::Wait() const {
  std::unique_lock lock(outcome_->mutex);
  outcome_->is_set.wait(lock, [&] { return outcome_->result.has_value(); });
  return *outcome_->result;
}

bool PendingCheckpoint::IsDone() const {
  const std::lock_guard lock(outcome_->mutex);
  return outcome_->result.has_value();
}

CheckpointWriter::CheckpointWriter(const CheckpointGroups& groups,
                                   const CheckpointWriterOptions& options)
    : options_(options),
      part_(groups.part),
      shard_rank_(groups.shard->rank()),
      shard_ranks_(groups.shard->size()),
      writes_(groups.replicas == nullptr ||
              groups.replicas->rank() == collectives::Rank(0)) {}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    const CheckpointGroups& groups, const CheckpointWriterOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckArguments(groups, options));
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(groups, options));
  collectives::Communicator& world =
      groups.world == nullptr ? *groups.shard : *groups.world;
  std::vector<collectives::Rank> members;
  for (int64_t r = 0; r < world.size(); ++r) members.emplace_back(r);
  TESSERA_ASSIGN_OR_RETURN(
      writer->group_,
      world.Subgroup(members, absl::StrCat(world.name(), "/checkpoint")));
  return writer;
}

CheckpointWriter::~CheckpointWriter() { Join(); }

void CheckpointWriter::Join() {
  if (thread_.joinable()) thread_.join();
}

SaveJob CheckpointWriter::MakeJob(const SaveReport& report) const {
  return {.directory = options_.directory,
          .keep = options_.keep,
          .timeout = options_.timeout,
          .files =
              options_.files != nullptr ? options_.files : &FileCalls::System(),
          .report = report};
}

absl::Status CheckpointWriter::Prepare(ShardedState& state,
                                       CheckpointMetadata metadata,
                                       SaveReport& report,
                                       std::vector<BlockRange>& blocks) const {
  report = {.step = state.steps(),
            .part = part_,
            .shard_rank = shard_rank_.value(),
            .shard_ranks = shard_ranks_,
            .writes = writes_};
  TESSERA_ASSIGN_OR_RETURN(const StateShare share,
                           ShareOf(state, shard_rank_, shard_ranks_));
  if (share.layout.ranks() != shard_ranks_ || share.rank != shard_rank_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state is sharded over ", share.layout.ranks(),
                     " ranks, the group of the checkpoint has ", shard_ranks_,
                     "; give the shard group of the state"));
  }
  if (!writes_) return absl::OkStatus();
  blocks = PlanBlocks(share, MomentsOf(state), options_.block_elements);
  if (shard_rank_ != topology::Rank(0)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(report.description,
                           Describe(share, state, part_, std::move(metadata)));
  return absl::OkStatus();
}

PendingCheckpoint CheckpointWriter::Start(ShardedState& state,
                                          CheckpointMetadata metadata) {
  Join();
  SaveReport report;
  std::vector<BlockRange> blocks;
  absl::Status status = Prepare(state, std::move(metadata), report, blocks);
  auto snapshot = std::make_shared<Snapshot>();
  if (status.ok() && writes_) {
    auto taken =
        Snapshot::Take(state, std::move(blocks), options_.snapshot_memory);
    status = taken.status();
    if (taken.ok()) *snapshot = *std::move(taken);
  }
  report.status = status;
  SaveJob job = MakeJob(report);
  job.for_each_block = [snapshot = std::move(snapshot)](BlockUse use) {
    return snapshot->ForEachBlock(use);
  };
  PendingCheckpoint pending;
  thread_ = std::thread(
      [this, outcome = pending.outcome_, job = std::move(job)]() mutable {
        outcome->Set(RunSaveJob(*group_, std::move(job)));
      });
  return pending;
}

absl::StatusOr<std::string> CheckpointWriter::Save(
    ShardedState& state, CheckpointMetadata metadata) {
  Join();
  SaveReport report;
  std::vector<BlockRange> blocks;
  report.status = Prepare(state, std::move(metadata), report, blocks);
  SaveJob job = MakeJob(report);
  job.for_each_block = [&](BlockUse use) {
    return ReadBlocks(state, blocks, use);
  };
  return RunSaveJob(*group_, std::move(job));
}

absl::StatusOr<std::string> SaveCheckpoint(
    const CheckpointGroups& groups, const CheckpointWriterOptions& options,
    ShardedState& state, CheckpointMetadata metadata) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointWriter> writer,
                           CheckpointWriter::Create(groups, options));
  return writer->Save(state, std::move(metadata));
}

}  // namespace tessera::zero3
