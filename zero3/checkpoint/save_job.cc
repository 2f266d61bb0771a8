#include "zero3/checkpoint/save_job.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/manifest_json.h"
#include "zero3/checkpoint/shard_writer.h"

namespace tessera::zero3 {
namespace {

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
    // Another's leftovers are not this one's to remove.
    if (has_begun_) directory_.Discard(step()).IgnoreError();
    return Annotate(status,
                    absl::StrCat("checkpoint of step ", step(),
                                 " was not written, earlier ones are intact"));
  }

 private:
  int64_t step() const { return job_.report.step; }
  bool is_first() const { return group_.rank() == collectives::Rank(0); }

  absl::Status RunSteps() {
    if (is_first() && job_.report.status.ok()) {
      job_.report.status = directory_.Begin(step());
      has_begun_ = job_.report.status.ok();
    }
    TESSERA_RETURN_IF_ERROR(ExchangeReports());
    // The same on every rank, as it follows from what all have.
    TESSERA_RETURN_IF_ERROR(CheckReports(by_rank_));
    if (job_.report.writes) job_.report.status = WriteFile();
    TESSERA_RETURN_IF_ERROR(ExchangeReports());
    return collectives::AgreeOnStatus(
        group_, is_first() ? Commit() : absl::OkStatus(), job_.timeout);
  }

  // Every rank's report to every rank; the first error, if any has one.
  absl::Status ExchangeReports() {
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::string> texts,
        collectives::ExchangeTexts(group_, FormatReport(job_.report),
                                   job_.timeout));
    by_rank_.clear();
    std::vector<absl::Status> statuses;
    for (const std::string& text : texts) {
      TESSERA_ASSIGN_OR_RETURN(SaveReport report, ParseReport(text));
      statuses.push_back(report.status);
      by_rank_.push_back(std::move(report));
    }
    return collectives::FirstError(group_.name(), statuses);
  }

  absl::Status WriteFile() {
    const SaveReport& report = job_.report;
    const std::string path =
        absl::StrCat(directory_.writing_path(step()), "/",
                     ShardFileName(report.part, report.shard_rank));
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<ShardWriter> writer,
        ShardWriter::Create(*job_.files, path,
                            {.step = step(),
                             .rank = report.shard_rank,
                             .ranks = report.shard_ranks}));
    TESSERA_RETURN_IF_ERROR(job_.for_each_block(
        [&](const BlockRange& range, std::span<const std::byte> bytes) {
          return writer->Add(range, bytes);
        }));
    TESSERA_ASSIGN_OR_RETURN(job_.report.file, writer->Finish());
    // The memory of a snapshot is free before others are waited for.
    job_.for_each_block = nullptr;
    return absl::OkStatus();
  }

  absl::Status Commit() {
    TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                             ManifestOf(by_rank_));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
    TESSERA_RETURN_IF_ERROR(directory_.Commit(step(), text));
    has_begun_ = false;
    // What cannot be removed does not make the new one less complete, and is
    // tried again next time.
    if (job_.keep > 0) directory_.Prune(step(), job_.keep).IgnoreError();
    return absl::OkStatus();
  }

  collectives::Communicator& group_;
  SaveJob job_;
  CheckpointDirectory directory_;
  bool has_begun_ = false;
  std::vector<SaveReport> by_rank_;
};

}  // namespace

absl::StatusOr<std::string> RunSaveJob(collectives::Communicator& group,
                                       SaveJob job) {
  return SaveRun(group, std::move(job)).Run();
}

}  // namespace tessera::zero3
