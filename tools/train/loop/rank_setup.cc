#include "tools/train/loop/rank_setup.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

namespace {

// With --force a GPU may have less memory than predicted. Then memory is not
// allocated at the start; each request is an allocation.
absl::StatusOr<std::unique_ptr<RankDevice>> MakeDevice(const RunContext& run) {
  const Settings& settings = run.settings;
  int64_t bytes = 0;
  if (!settings.device.empty() && settings.device != "cpu" && !settings.force) {
    TESSERA_ASSIGN_OR_RETURN(
        const RunPrediction prediction,
        MakePrediction(settings, run.model, {.room = MachineRoom()}));
    bytes = prediction.device_bytes();
  }
  return RankDevice::Create(
      settings, run.world,
      {.local_rank = run.sinks.local_rank, .memory_bytes = bytes});
}

// The number of threads that initialize weights. Nothing else runs meanwhile,
// so the ranks of the machine share all its processors, independent of
// --threads.
int FillThreads(const RunContext& run) {
  const int64_t ranks = run.sinks.local_ranks.value_or(run.world.size());
  return static_cast<int>(
      std::max(run.settings.threads, AvailableProcessors() / ranks));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankSetup>> RankSetup::Create(
    const RunContext& run) {
  auto setup = std::make_unique<RankSetup>();
  TESSERA_ASSIGN_OR_RETURN(setup->device_, MakeDevice(run));
  if (PlacePage* const page = AttachedPlace()) {
    page->on_device = !setup->device_->ops().queue().is_immediate();
  }
  TESSERA_ASSIGN_OR_RETURN(setup->clock_offset_, ClockOffset(run.world));
  setup->meter_.emplace(setup->device_->ops(), run.sinks.collectives,
                        setup->clock_offset_);
  TESSERA_RETURN_IF_ERROR(setup->Make(run));
  return setup;
}

absl::Status RankSetup::Make(const RunContext& run) {
  const Settings& settings = run.settings;
  TESSERA_ASSIGN_OR_RETURN(RunOptions options,
                           RunOptionsFrom(settings, run.model));
  if (settings.document_attention) {
    options.document_end = run.data.tokenizer->end_of_text();
  }
  if (const int64_t bad = run.data.samples->bad_lines(); bad > 0) {
    run.Say(absl::StrCat("--max_bad_lines=", settings.max_bad_lines, ": ", bad,
                         " invalid lines of the data are skipped"));
  }
  if (const int64_t cut = run.data.samples->cut_documents(); cut > 0) {
    run.Say(absl::StrCat("--packing=whole: ", cut, " of ",
                         run.data.samples->packed_documents(),
                         " documents have more than --length=", settings.length,
                         " tokens and a target; their ends are not learned"));
  }
  TESSERA_ASSIGN_OR_RETURN(tiers_,
                           OffloadTiers::Create(settings, meter_->tiers()));
  tiers_->AddTo(options);
  if (const absl::Status pinned = tiers_->pin_status(); !pinned.ok()) {
    run.Say(
        absl::StrCat("--pin_memory: memory is not pinned: ", pinned.message()));
  }
  options.state.ops = device_->state_ops();
  options.state.adamw.pool = options.state.sgd.pool = options.state.lion.pool =
      device_->pool();
  options.state.fill_threads = FillThreads(run);
  if (run.first_weights != nullptr) {
    options.first_weights = [weights = run.first_weights](
                                const tensor_parallel::Parameter& parameter,
                                int64_t begin, TensorView elements) {
      return weights->Fill(parameter, begin, elements);
    };
  }
  // Predictions have no device.
  options.graphs = settings.cuda_graphs == "on"     ? GraphChoice::kOn
                   : settings.cuda_graphs == "auto" ? GraphChoice::kAuto
                                                    : GraphChoice::kOff;
  TESSERA_ASSIGN_OR_RETURN(
      rank_, TrainRank::Create(device_->world(), options, *run.data.samples,
                               meter_->ops()));
  return absl::OkStatus();
}

void RankSetup::Release() {
  meter_->AddLateGathers(*rank_);
  rank_.reset();
  tiers_.reset();
}

std::string RankSetup::name() const {
  const TrainRank::Groups& groups = rank_->groups();
  return absl::StrCat("rank ", rank_->world().rank().value(), " (dp",
                      groups.data->rank().value() / groups.cp->size(), " pp",
                      groups.pp->rank().value(), " cp",
                      groups.cp->rank().value(), " tp",
                      groups.tp->rank().value(), ")");
}

}  // namespace tessera::train
