#include "tools/train/predict/run_prediction.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tools/train/predict/shared_windows.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/run_options_from.h"

namespace tessera::train {
namespace {

absl::Status AddRanks(const RunPlan& plan, const StateHomes& homes,
                      RunPrediction& prediction) {
  const MeshSizes& mesh = plan.options().mesh;
  const int64_t world = mesh.world_size();
  const bool each = world <= kMostPredictedRanks;
  prediction.ranks_like_each = each ? 1 : world / mesh.pp;
  std::vector<RankPlace> places;
  for (int64_t i = 0; i < (each ? world : mesh.pp); ++i) {
    places.push_back(each ? RankPlace::Of(i, mesh) : RankPlace{.pp = i});
  }
  TESSERA_ASSIGN_OR_RETURN(prediction.ranks, PredictRanks(plan, places, homes));
  return absl::OkStatus();
}

void AddWindows(topology::CommunicationStrategy strategy,
                RunPrediction& prediction) {
  const int64_t processors = prediction.room.processors;
  const SharingOptions options = {
      .crowded = processors > 0 && processors < prediction.ranks_here,
      .strategy = strategy};
  for (RankPrediction& rank : prediction.ranks) {
    rank.windows =
        SharedWindows(prediction.mesh, rank.place, rank.traffic, options);
  }
}

// By the ranks on this machine; of fewer than all, the largest.
int64_t NeededHere(const RunPrediction& prediction) {
  std::vector<int64_t> peaks;
  for (const RankPrediction& rank : prediction.ranks) {
    peaks.push_back(prediction.PeakOf(rank));
  }
  std::sort(peaks.rbegin(), peaks.rend());
  const int64_t processes =
      prediction.shares_process ? 1 : prediction.ranks_here;
  int64_t needed = processes * prediction.room.process;
  int64_t left = prediction.ranks_here;
  for (const int64_t peak : peaks) {
    const int64_t count = std::min(left, prediction.ranks_like_each);
    needed += count * peak;
    left -= count;
  }
  return needed;
}

}  // namespace

int64_t RunPrediction::PeakOf(const RankPrediction& rank) const {
  return rank.peak_bytes() + (trains_while_saving ? rank.state.snapshot : 0);
}

const RankPrediction& RunPrediction::largest() const {
  return *std::max_element(
      ranks.begin(), ranks.end(),
      [this](const auto& a, const auto& b) { return PeakOf(a) < PeakOf(b); });
}

StateHomes HomesOf(const Settings& settings) {
  const StateHome away =
      settings.offload_dir.empty() ? StateHome::kHost : StateHome::kFiles;
  const OffloadChoice offload = OffloadChoice::Of(settings.offload);
  StateHomes homes;
  homes.compressed = settings.compression != "none";
  if (offload.optimizer) homes.optimizer = away;
  if (settings.zero == 3 && offload.parameters) homes.parameters = away;
  if (settings.zero >= 2 && offload.gradients) homes.gradients = away;
  if (offload.activations) homes.activations = away;
  return homes;
}

absl::StatusOr<RunPrediction> MakePrediction(
    const Settings& settings, const model_files::ModelConfig& model,
    const PredictOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const RunOptions run,
                           RunOptionsFrom(settings, model));
  TESSERA_ASSIGN_OR_RETURN(const RunPlan plan, RunPlan::Create(run));
  RunPrediction prediction;
  prediction.mesh = run.mesh;
  prediction.schedule = run.schedule;
  prediction.stages = plan.stages();
  prediction.micro_batches = plan.micro_batches();
  prediction.parameters = model.ParameterCount();
  TESSERA_RETURN_IF_ERROR(AddRanks(plan, HomesOf(settings), prediction));
  TESSERA_ASSIGN_OR_RETURN(prediction.bubble, PredictBubble(plan));
  prediction.work = RunWorkOf(run);
  if (options.room.has_value()) {
    prediction.room = *options.room;
  } else {
    TESSERA_ASSIGN_OR_RETURN(prediction.room, ReadMachineRoom());
  }
  const int64_t world = run.mesh.world_size();
  prediction.ranks_here =
      options.ranks_here > 0 ? std::min(options.ranks_here, world) : world;
  prediction.shares_process = settings.engine == "in_process";
  prediction.trains_while_saving = settings.checkpoint_every > 0 &&
                                   settings.checkpoint_every < settings.steps;
  if (settings.engine == "shared_memory")
    AddWindows(settings.parallel.strategy, prediction);
  prediction.needed = NeededHere(prediction);
  return prediction;
}

}  // namespace tessera::train
