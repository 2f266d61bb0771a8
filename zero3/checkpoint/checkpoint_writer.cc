#include "zero3/checkpoint/checkpoint_writer.h"

#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "base/steady_now.h"
#include "collectives/groups/agreement.h"
#include "nlohmann/json.hpp"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/shard_file.h"
#include "zero3/checkpoint/shard_format.h"

namespace tessera::zero3 {

namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr size_t kLongestMessage = 2000;

struct PartRanks {
  int64_t shard_ranks = 0;
  int64_t first = 0;                  // The rank that was seen first.
  std::map<int64_t, size_t> writers;  // By shard rank.
};

absl::Status AddRank(const SaveReport& report,
                     std::map<std::string, PartRanks>& parts) {
  PartRanks& part = parts[report.part];
  const int64_t rank = report.rank;
  const auto refuse = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "part ", Quoted(report.part), " of the checkpoint: rank ", rank, what));
  };
  if (part.shard_ranks == 0) {
    part.shard_ranks = report.shard_ranks;
    part.first = rank;
  }
  if (part.shard_ranks != report.shard_ranks) {
    return refuse(absl::StrCat(" shards it over ", report.shard_ranks,
                               " ranks, rank ", part.first, " over ",
                               part.shard_ranks,
                               "; give parts of the model different names"));
  }
  if (!report.writes) return absl::OkStatus();
  const auto [other, is_new] =
      part.writers.emplace(report.shard_rank, static_cast<size_t>(rank));
  if (is_new) return absl::OkStatus();
  return refuse(absl::StrCat(
      " and rank ", other->second, " both write shard ", report.shard_rank,
      "; give parts of the model different names, and the group of replicas "
      "where there is one"));
}

class SaveRun {
 public:
  SaveRun(collectives::Communicator& group, SaveJob job)
      : group_(group),
        job_(std::move(job)),
        directory_(*job_.files, job_.directory) {}

  absl::StatusOr<std::string> Run() {
    absl::Status status = RunSteps();
    if (status.ok()) {
      return absl::StrCat(job_.directory, "/", CheckpointName(step()));
    }
    // Does not remove the leftovers of another writer.
    if (has_begun_) directory_.Discard(step()).IgnoreError();
    return Annotate(status,
                    absl::StrCat("checkpoint of step ", step(),
                                 " was not written; earlier ones are intact"));
  }

 private:
  int64_t step() const { return job_.shards[0].report.step; }
  bool is_first() const { return group_.rank() == collectives::Rank(0); }

  absl::Status RunSteps() {
    absl::Status& first = job_.shards[0].report.status;
    if (is_first() && first.ok()) {
      first = directory_.Begin(step());
      has_begun_ = first.ok();
    }
    TESSERA_RETURN_IF_ERROR(ExchangeReports());
    // All ranks get the same result, because all have the same reports.
    TESSERA_RETURN_IF_ERROR(CheckReports(reports_));
    for (SaveJob::Shard& shard : job_.shards) {
      if (shard.report.writes) shard.report.status = WriteFile(shard);
    }
    TESSERA_RETURN_IF_ERROR(ExchangeReports());
    return collectives::AgreeOnStatus(
        group_, is_first() ? Commit() : absl::OkStatus(), job_.timeout);
  }

  // Sends every rank's reports, one line each, to every rank. Returns the first
  // error in them.
  absl::Status ExchangeReports() {
    std::string mine;
    for (const SaveJob::Shard& shard : job_.shards) {
      absl::StrAppend(&mine, mine.empty() ? "" : "\n",
                      FormatReport(shard.report));
    }
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::string> texts,
        collectives::ExchangeTexts(group_, mine, job_.timeout));
    reports_.clear();
    std::vector<absl::Status> statuses(texts.size());
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      for (const std::string_view line : absl::StrSplit(texts[rank], '\n')) {
        TESSERA_ASSIGN_OR_RETURN(SaveReport report, ParseReport(line));
        report.rank = static_cast<int64_t>(rank);
        statuses[rank].Update(report.status);
        reports_.push_back(std::move(report));
      }
    }
    return collectives::FirstError(group_.name(), statuses);
  }

  absl::Status WriteFile(SaveJob::Shard& shard) {
    SaveReport& report = shard.report;
    const std::string path =
        absl::StrCat(directory_.writing_path(step()), "/",
                     ShardFileName(report.part, report.shard_rank));
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<ShardWriter> writer,
        ShardWriter::Create(*job_.files, path,
                            {.step = step(),
                             .rank = report.shard_rank,
                             .ranks = report.shard_ranks}));
    TESSERA_RETURN_IF_ERROR(shard.for_each_block(
        [&](const BlockRange& range, std::span<const std::byte> bytes) {
          return writer->Add(range, bytes);
        }));
    TESSERA_ASSIGN_OR_RETURN(report.file, writer->Finish());
    // Frees the memory of the snapshot before waiting for other ranks.
    shard.for_each_block = nullptr;
    return absl::OkStatus();
  }

  absl::Status Commit() {
    TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                             ManifestOf(reports_, group_.size()));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
    TESSERA_RETURN_IF_ERROR(directory_.Commit(step(), text));
    has_begun_ = false;
    // A failure to remove an old checkpoint does not affect the new one; the
    // next save tries again.
    if (job_.keep > 0) {
      directory_.Prune(step(), job_.keep, job_.keep_least).IgnoreError();
    }
    return absl::OkStatus();
  }

  collectives::Communicator& group_;
  SaveJob job_;
  CheckpointDirectory directory_;
  bool has_begun_ = false;
  std::vector<SaveReport> reports_;  // Of all ranks, in their order.
};

absl::Status CheckArguments(std::span<const CheckpointGroups> groups,
                            const CheckpointWriterOptions& options) {
  if (groups.empty()) {
    return absl::InvalidArgumentError(
        "a checkpoint of no state; give the groups of each");
  }
  for (const CheckpointGroups& of_state : groups) {
    if (of_state.shard == nullptr) {
      return absl::InvalidArgumentError(
          "a checkpoint needs the shard group of the state");
    }
    TESSERA_RETURN_IF_ERROR(CheckPartName(of_state.part));
  }
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

// A report with this rank's position in the groups.
SaveReport PlaceOf(const CheckpointGroups& groups) {
  return {.part = groups.part,
          .shard_rank = groups.shard->rank().value(),
          .shard_ranks = groups.shard->size(),
          .writes = groups.replicas == nullptr ||
                    groups.replicas->rank() == collectives::Rank(0)};
}

// The share that the report describes.
absl::StatusOr<StateShare> ShareFor(const SaveReport& report,
                                    const ShardedState& state) {
  const topology::Rank shard_rank(report.shard_rank);
  TESSERA_ASSIGN_OR_RETURN(StateShare share,
                           ShareOf(state, shard_rank, report.shard_ranks));
  if (share.layout.ranks() == report.shard_ranks && share.rank == shard_rank) {
    return share;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the state is sharded over ", share.layout.ranks(),
                   " ranks, the group of the checkpoint has ",
                   report.shard_ranks, "; give the shard group of the state"));
}

// The manifest's description of the part.
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

absl::StatusOr<Snapshot> Snapshot::Take(
    ShardedState& state, std::vector<BlockRange> blocks,
    std::shared_ptr<offload::Accounting> accounting) {
  if (accounting == nullptr) {
    accounting =
        std::make_shared<offload::Accounting>("snapshots", offload::kUnlimited);
  }
  int64_t bytes = 0;
  for (const BlockRange& range : blocks) bytes += range.bytes();
  Snapshot snapshot;
  StateDevice host(std::move(accounting));
  host.memory = state.queue().device().staging_memory();
  TESSERA_ASSIGN_OR_RETURN(
      snapshot.memory_,
      AccountedMemory::Allocate(host, "checkpoint snapshot", bytes,
                                offload::Purpose::kBuffers));
  auto copied = StartCopyOfBlocks(state, blocks, snapshot.memory_.bytes());
  if (!copied.ok()) {
    // Some copies may be in flight.
    state.queue().Synchronize().IgnoreError();
    return copied.status();
  }
  snapshot.copied_ = *std::move(copied);
  snapshot.device_ = &state.queue().device();
  snapshot.blocks_ = std::move(blocks);
  return snapshot;
}

absl::Status Snapshot::ForEachBlock(BlockUse use) const {
  TESSERA_RETURN_IF_ERROR(copied_.Wait());
  if (device_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        device_->HostAccess(ReadsFrom(memory_.bytes()), "write a snapshot"));
  }
  size_t at = 0;
  for (const BlockRange& range : blocks_) {
    const auto size = static_cast<size_t>(range.bytes());
    TESSERA_RETURN_IF_ERROR(use(range, memory_.bytes().subspan(at, size)));
    at += size;
  }
  return absl::OkStatus();
}

std::string FormatReport(const SaveReport& report) {
  return DumpJson(nlohmann::ordered_json{
      {"code", report.status.raw_code()},
      {"message",
       std::string(report.status.message().substr(0, kLongestMessage))},
      {"step", report.step},
      {"part", report.part},
      {"shard_rank", report.shard_rank},
      {"shard_ranks", report.shard_ranks},
      {"writes", report.writes},
      {"bytes", report.file.bytes},
      {"crc32c", FormatHex32(report.file.crc32c)},
      {"index_crc32c", FormatHex32(report.file.index_crc32c)},
      {"description", report.description}});
}

absl::StatusOr<SaveReport> ParseReport(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(
      const nlohmann::json json,
      ParseJson(text, {.max_bytes = kMaxManifestBytes, .max_depth = 2}));
  JsonProblems problems;
  JsonReader fields(json, "", problems);
  SaveReport report;
  const int64_t code = fields.Integer("code", 0, 16);
  report.status =
      absl::Status(static_cast<absl::StatusCode>(code), fields.Text("message"));
  report.step = fields.Integer("step", 0, kMax);
  report.part = fields.Text("part");
  report.shard_ranks = fields.Integer("shard_ranks", 1, kMaxShardRanks);
  report.shard_rank = fields.Integer("shard_rank", 0, report.shard_ranks - 1);
  report.writes = fields.Boolean("writes");
  report.file.bytes = fields.Integer("bytes", 0, kMax);
  report.file.crc32c = ReadHex32(fields, "crc32c");
  report.file.index_crc32c = ReadHex32(fields, "index_crc32c");
  report.description = fields.Text("description");
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the report"));
  return report;
}

absl::StatusOr<SaveReport> DescribeShard(const CheckpointGroups& groups,
                                         ShardedState& state,
                                         CheckpointMetadata metadata) {
  SaveReport report = PlaceOf(groups);
  report.step = state.steps();
  TESSERA_ASSIGN_OR_RETURN(const StateShare share, ShareFor(report, state));
  TESSERA_ASSIGN_OR_RETURN(
      report.description,
      Describe(share, state, report.part, std::move(metadata)));
  return report;
}

absl::Status CheckReports(const std::vector<SaveReport>& reports) {
  std::map<std::string, PartRanks> parts;
  for (const SaveReport& report : reports) {
    if (report.step != reports[0].step) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", report.rank, " saves step ", report.step, ", rank 0 step ",
          reports[0].step, "; all ranks save after the same step"));
    }
    TESSERA_RETURN_IF_ERROR(AddRank(report, parts));
  }
  for (const auto& [name, part] : parts) {
    if (static_cast<int64_t>(part.writers.size()) == part.shard_ranks) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "part ", Quoted(name), " of the checkpoint: only ", part.writers.size(),
        " of its ", part.shard_ranks,
        " shards are written; all ranks of the shard group take part, with "
        "one name for the part"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> ManifestOf(
    const std::vector<SaveReport>& reports, int64_t world) {
  CheckpointManifest manifest = {.step = reports[0].step, .world = world};
  std::map<std::string, std::map<int64_t, CheckpointFile>> files;
  std::map<std::string, int64_t> ranks;
  for (const SaveReport& report : reports) {
    ++ranks[report.part];
    if (report.writes) files[report.part][report.shard_rank] = report.file;
  }
  for (const SaveReport& report : reports) {
    if (!report.writes || report.shard_rank != 0) continue;
    TESSERA_ASSIGN_OR_RETURN(CheckpointPart part,
                             ParsePart(report.description));
    part.replicas = ranks[part.name] / report.shard_ranks;
    for (const auto& [rank, file] : files[part.name]) {
      part.files.push_back(file);
    }
    manifest.parts.push_back(std::move(part));
  }
  return manifest;
}

absl::StatusOr<std::string> RunSaveJob(collectives::Communicator& group,
                                       SaveJob job) {
  return SaveRun(group, std::move(job)).Run();
}

void PendingCheckpoint::Outcome::Set(absl::StatusOr<std::string> value) {
  const std::lock_guard lock(mutex);
  result = std::move(value);
  time_taken = SteadyNow() - begin;
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

absl::Duration PendingCheckpoint::TimeTaken() const {
  const std::lock_guard lock(outcome_->mutex);
  return outcome_->time_taken;
}

CheckpointWriter::CheckpointWriter(std::span<const CheckpointGroups> groups,
                                   const CheckpointWriterOptions& options)
    : options_(options) {
  for (const CheckpointGroups& of_state : groups) {
    places_.push_back(PlaceOf(of_state));
  }
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    std::span<const CheckpointGroups> groups,
    const CheckpointWriterOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckArguments(groups, options));
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(groups, options));
  collectives::Communicator& world =
      groups[0].world == nullptr ? *groups[0].shard : *groups[0].world;
  std::vector<collectives::Rank> members;
  for (int64_t r = 0; r < world.size(); ++r) members.emplace_back(r);
  TESSERA_ASSIGN_OR_RETURN(
      writer->group_, world.host().Subgroup(
                          members, absl::StrCat(world.name(), "/checkpoint")));
  return writer;
}

CheckpointWriter::~CheckpointWriter() { Join(); }

void CheckpointWriter::Join() {
  if (thread_.joinable()) thread_.join();
}

SaveJob CheckpointWriter::MakeJob() const {
  return {.directory = options_.directory,
          .keep = options_.keep,
          .keep_least = options_.keep_least,
          .timeout = options_.timeout,
          .files = options_.files != nullptr ? options_.files
                                             : &FileCalls::System()};
}

absl::Status CheckpointWriter::Prepare(SavedState& saved, SaveReport& report,
                                       std::vector<BlockRange>& blocks) const {
  report.step = saved.state.steps();
  TESSERA_ASSIGN_OR_RETURN(const StateShare share,
                           ShareFor(report, saved.state));
  if (!report.writes) return absl::OkStatus();
  blocks = PlanBlocks(share, MomentsOf(saved.state), options_.block_elements);
  if (report.shard_rank != 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      report.description,
      Describe(share, saved.state, report.part, std::move(saved.metadata)));
  return absl::OkStatus();
}

PendingCheckpoint CheckpointWriter::Start(std::vector<SavedState> states) {
  Join();
  SaveJob job = MakeJob();
  for (size_t i = 0; i < places_.size(); ++i) {
    SaveJob::Shard& shard = job.shards.emplace_back();
    shard.report = places_[i];
    std::vector<BlockRange> blocks;
    absl::Status status = Prepare(states[i], shard.report, blocks);
    auto snapshot = std::make_shared<Snapshot>();
    if (status.ok() && places_[i].writes) {
      auto taken = Snapshot::Take(states[i].state, std::move(blocks),
                                  options_.snapshot_memory);
      status = taken.status();
      if (taken.ok()) *snapshot = *std::move(taken);
    }
    shard.report.status = status;
    shard.for_each_block = [snapshot = std::move(snapshot)](BlockUse use) {
      return snapshot->ForEachBlock(use);
    };
  }
  PendingCheckpoint pending;
  thread_ = std::thread(
      [this, outcome = pending.outcome_, job = std::move(job)]() mutable {
        outcome->Set(RunSaveJob(*group_, std::move(job)));
      });
  return pending;
}

absl::StatusOr<std::string> CheckpointWriter::Save(
    std::vector<SavedState> states) {
  Join();
  SaveJob job = MakeJob();
  std::vector<std::vector<BlockRange>> blocks(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    SaveJob::Shard& shard = job.shards.emplace_back();
    shard.report = places_[i];
    shard.report.status = Prepare(states[i], shard.report, blocks[i]);
    shard.for_each_block = [&state = states[i].state,
                            &of_state = blocks[i]](BlockUse use) {
      return ReadBlocks(state, of_state, use);
    };
  }
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
