#include "tools/train/predict/run_prediction.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "offload/pressure/system_memory.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/run_options_from.h"

namespace tessera::train {

absl::StatusOr<MachineRoom> ReadMachineRoom(offload::MemorySource& source) {
  TESSERA_ASSIGN_OR_RETURN(const offload::MemoryReading reading, source.Read());
  MachineRoom room;
  room.process = reading.resident;
  for (const offload::MemoryLimit& limit : reading.limits) {
    if (absl::StartsWith(limit.source, "RLIMIT")) continue;
    const int64_t left = std::max<int64_t>(limit.limit - limit.used, 0);
    if (!room.limit.empty() && left >= room.bytes) continue;
    room.bytes = left;
    room.limit = limit.source;
  }
  if (!room.limit.empty()) return room;
  return absl::NotFoundError(
      "neither the machine nor a control group says how much memory there is");
}

absl::StatusOr<MachineRoom> ReadMachineRoom() {
  offload::SystemMemory system;
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom(system));
  room.processors = AvailableProcessors();
  return room;
}

namespace {

absl::Status AddRanks(const PipelinePlan& plan, const StateHomes& homes,
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

// The needs of the ranks on this machine; if those are not all ranks, of the
// largest ones.
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
  TESSERA_ASSIGN_OR_RETURN(const PipelinePlan plan, PipelinePlan::Create(run));
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

namespace {

struct Change {
  std::string flag;
  std::function<void(Settings&)> make;
};

// Sorted from the cheapest in time to the most expensive.
std::vector<Change> ChangesOf(const Settings& settings, const MeshSizes& mesh) {
  std::vector<Change> changes;
  const auto add = [&](bool applies, std::string flag, auto make) {
    if (applies) changes.push_back({std::move(flag), make});
  };
  add(settings.zero < 3 && mesh.dp * mesh.cp > 1, "--zero=3",
      [](Settings& to) { to.zero = 3; });
  add(mesh.tp > 1 && !settings.sequence_parallel, "--sequence_parallel",
      [](Settings& to) { to.sequence_parallel = true; });
  add(settings.recompute == "none", "--recompute=selective",
      [](Settings& to) { to.recompute = "selective"; });
  add(settings.parallel.micro_batch > 1, "--micro_batch=1",
      [](Settings& to) { to.parallel.micro_batch = 1; });
  add(settings.recompute != "full", "--recompute=full",
      [](Settings& to) { to.recompute = "full"; });
  add(settings.parallel.schedule == "gpipe" ||
          settings.parallel.schedule == "sequential",
      "--schedule=1f1b", [](Settings& to) { to.parallel.schedule = "1f1b"; });
  const auto offload = [&](std::string_view state) {
    const std::string what = WithActivationsOf(settings.offload, state);
    add(settings.offload != what || settings.offload_dir.empty(),
        absl::StrCat("--offload=", what, " --offload_dir=DIR"),
        [what](Settings& to) {
          to.offload = what;
          to.offload_dir = "DIR";
        });
  };
  offload("optimizer");
  if (settings.zero == 3) offload("all");
  return changes;
}

absl::StatusOr<MemoryAdvice> Try(const Settings& changed, std::string flag,
                                 const model_files::ModelConfig& model,
                                 const RunPrediction& before) {
  auto prediction = MakePrediction(
      changed, model, {.room = before.room, .ranks_here = before.ranks_here});
  if (!prediction.ok()) return prediction.status();
  return MemoryAdvice{.flag = std::move(flag),
                      .needed = prediction->needed,
                      .fits = prediction->fits()};
}

}  // namespace

std::vector<MemoryAdvice> AdviceFor(const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const RunPrediction& prediction,
                                    bool first_only) {
  const std::vector<Change> changes = ChangesOf(settings, prediction.mesh);
  std::vector<MemoryAdvice> alone;
  for (const Change& change : changes) {
    Settings changed = settings;
    change.make(changed);
    auto advice = Try(changed, change.flag, model, prediction);
    if (!advice.ok() || advice->needed >= prediction.needed) continue;
    alone.push_back(*std::move(advice));
  }
  const auto mildest = alone.empty() ? MemoryAdvice() : alone.front();
  std::stable_sort(
      alone.begin(), alone.end(),
      [](const auto& a, const auto& b) { return a.needed < b.needed; });
  if (alone.empty() || alone.front().fits) return alone;
  if (first_only) return {mildest};
  std::vector<MemoryAdvice> together;
  Settings changed = settings;
  int64_t needed = prediction.needed;
  for (const Change& change : changes) {
    Settings next = changed;
    change.make(next);
    auto advice = Try(next, change.flag, model, prediction);
    if (!advice.ok() || advice->needed >= needed) continue;
    advice->and_before = !together.empty();
    needed = advice->needed;
    changed = std::move(next);
    together.push_back(*std::move(advice));
    if (together.back().fits) break;
  }
  return together;
}

absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(RunPrediction prediction,
                           MakePrediction(settings, model, options));
  if (!prediction.fits()) {
    prediction.advice =
        AdviceFor(settings, model, prediction, options.first_advice_only);
  }
  return prediction;
}

}  // namespace tessera::train
