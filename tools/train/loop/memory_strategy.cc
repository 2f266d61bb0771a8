#include "tools/train/loop/memory_strategy.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/pressure_policy.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {

namespace {

// A temporary directory that all ranks use. Rank 0 creates it, and removes it
// with its contents.
class CommonDirectory {
 public:
  // A collective of the run's world.
  static absl::StatusOr<std::shared_ptr<CommonDirectory>> Create(
      const RunContext& run) {
    auto directory = std::make_shared<CommonDirectory>();
    absl::Status made;
    if (run.is_first()) made = directory->Make();
    TESSERA_RETURN_IF_ERROR(run.Agree(made));
    TESSERA_ASSIGN_OR_RETURN(directory->path_, run.FromFirst(directory->path_));
    return directory;
  }
  CommonDirectory() = default;
  ~CommonDirectory() {
    std::error_code ignored;
    if (is_own_) std::filesystem::remove_all(path_, ignored);
  }
  CommonDirectory(const CommonDirectory&) = delete;
  CommonDirectory& operator=(const CommonDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  absl::Status Make() {
    std::error_code error;
    const auto parent = std::filesystem::temp_directory_path(error);
    path_ = absl::StrCat(error ? "/tmp" : parent.string(), "/train-XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path_));
    }
    is_own_ = true;
    return absl::OkStatus();
  }

  std::string path_;
  bool is_own_ = false;
};

}  // namespace

MemoryStrategy::MemoryStrategy(const RunContext& run)
    : run_(run),
      limit_(run.settings.parallel.memory_limit.bytes()),
      strategy_(run.settings.parallel.memory_strategy) {
  if (limit_ == 0) return;
  watch_.emplace(
      limit_ / (run.shares_process() ? 1 : run.world.size()),
      run.sinks.memory.value_or(MemoryWatch::RealSystem()),
      offload::PressurePolicy::Of(OffloadConfigOf(run.settings).strategy));
}

void MemoryStrategy::Restart() {
  if (!watch_) return;
  peak_ = std::max(peak_, ReadResidentMemory().peak_resident);
  watch_->Restart();
}

absl::StatusOr<int64_t> MemoryStrategy::AfterStep(OffloadTiers& tiers) {
  if (!watch_) return 0;
  const MemoryWatch::Usage own = watch_->AfterStep();
  if (own.notice) run_.Say(absl::StrCat("memory: rank 0 ", *own.notice));
  TESSERA_ASSIGN_OR_RETURN(const int64_t moved, tiers.Relieve(own.reading));
  if (moved > 0) {
    offload::ReturnFreeMemory();
    run_.Say(absl::StrCat("memory: rank 0 moved ", moved,
                          " bytes of offloaded data to --offload_dir"));
  }
  int64_t used = std::max<int64_t>(own.used - moved, 0);
  TESSERA_RETURN_IF_ERROR(
      run_.world.AllReduce(collectives::Buffer(std::span(&used, 1)),
                           run_.shares_process()
                               ? collectives::Reduction::Max()
                               : collectives::Reduction::Sum()),
      Annotate(_, "exchanging the ranks' memory"));
  // Another thread may have reset the peak before this thread read it.
  if (run_.shares_process()) peak_ = std::max(peak_, used);
  return may_change_ && ExceedsMemoryLimit(used, limit_) ? used : 0;
}

absl::StatusOr<MemoryRung> MemoryStrategy::NextRung(int64_t used) const {
  const auto predict =
      [&](const Settings& settings) -> absl::StatusOr<int64_t> {
    TESSERA_ASSIGN_OR_RETURN(
        const RunPrediction prediction,
        MakePrediction(settings, run_.model, {.room = MachineRoom()}));
    return prediction.needed;
  };
  const auto is_enough = [&](const MemoryRung& rung) {
    return FitsMemoryLimit(used - (rung.as_given - rung.needed), limit_);
  };
  absl::StatusOr<MemoryRung> rung = MemoryRung{.settings = run_.settings};
  if (run_.is_first()) {
    rung = ClimbMemoryLadder(run_.settings, LadderUse::kWhileRunning,
                             ScratchOf(run_.settings), predict, is_enough);
  }
  TESSERA_RETURN_IF_ERROR(run_.Agree(rung.status()));
  TESSERA_ASSIGN_OR_RETURN(rung->flags, run_.FromFirst(rung->flags));
  TESSERA_ASSIGN_OR_RETURN(const std::string strategy,
                           run_.FromFirst(topology::EnumName(rung->strategy)));
  TESSERA_ASSIGN_OR_RETURN(
      rung->strategy, topology::ParseEnum<topology::MemoryStrategy>(strategy));
  TESSERA_ASSIGN_OR_RETURN(std::string settings,
                           FormatSettings(rung->settings));
  TESSERA_ASSIGN_OR_RETURN(settings, run_.FromFirst(settings));
  TESSERA_ASSIGN_OR_RETURN(rung->settings, ParseSettings(settings));
  return rung;
}

absl::StatusOr<StrategyCheckpoint> MemoryStrategy::SaveFor(
    const absl::StatusOr<MemoryRung>& rung, RankSetup& setup,
    CheckpointHistory& checkpoints, std::optional<double> eval_loss) const {
  absl::Status ready = rung.status();
  std::unique_ptr<OffloadTiers> tried;
  if (ready.ok()) {
    auto tiers = OffloadTiers::Create(rung->settings, setup.meter().tiers());
    ready = tiers.status();
    if (ready.ok()) tried = *std::move(tiers);
  }
  TESSERA_RETURN_IF_ERROR(run_.Agree(ready));
  // Removes the directories that it created, after all ranks have tried.
  tried.reset();
  StrategyCheckpoint saved;
  if (checkpoints.writes()) {
    TESSERA_ASSIGN_OR_RETURN(saved.path, checkpoints.Save(eval_loss));
    return saved;
  }
  TESSERA_ASSIGN_OR_RETURN(const auto scratch, CommonDirectory::Create(run_));
  TESSERA_ASSIGN_OR_RETURN(
      const auto writer,
      RunCheckpoints::Create(setup.rank(), {.directory = scratch->path(),
                                            .identity = run_.identity()}));
  TESSERA_ASSIGN_OR_RETURN(saved.path, writer->Save());
  saved.scratch = scratch;
  return saved;
}

const StrategyChange& MemoryStrategy::NoteChange(const MemoryRung& rung,
                                                 int64_t steps, int64_t used) {
  strategy_ = std::max(strategy_, rung.strategy);
  return changes_.emplace_back(StrategyChange{
      steps, used, std::string(topology::EnumName(strategy_)), rung.flags});
}

int64_t MemoryStrategy::peak() const {
  return std::max(peak_, watch_ ? watch_->peak() : int64_t{0});
}

}  // namespace tessera::train
