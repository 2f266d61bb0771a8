#include "tools/train/predict/run_prediction.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "offload/pressure/system_memory.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/ops_cuda/library_workspace.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings_table.h"
#include "zero3/config/offload_config.h"

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

// The largest block of attention that cuDNN computes in these stages; zeros if
// Tessera's kernels compute it. In ring attention a block has the queries of
// this rank and the keys of another rank.
tensor_parallel::CudnnAttentionShape AttentionOf(const StageShapes& stage,
                                                 const RunOptions& run) {
  constexpr int64_t kLargestHead = 128;
  if (stage.layers == 0 || stage.dtype != DType::kBF16 ||
      run.document_end.has_value() || run.model.window > 0 ||
      stage.head_size % 8 != 0 || stage.head_size > kLargestHead) {
    return {};
  }
  const int64_t contexts = run.mesh.cp;
  const int64_t own = stage.positions[static_cast<size_t>(stage.context_rank)];
  const int64_t most =
      *std::max_element(stage.positions.begin(), stage.positions.end());
  const bool exchanges =
      contexts > 1 &&
      run.context_attention == tensor_parallel::ContextAlgorithm::kUlysses;
  return {.sequences = stage.sequences,
          .queries = exchanges ? run.length : own,
          .keys = exchanges ? run.length : most,
          .heads = exchanges ? stage.heads / contexts : stage.heads,
          .kv_heads = exchanges
                          ? std::max<int64_t>(stage.kv_heads / contexts, 1)
                          : stage.kv_heads,
          .head_size = stage.head_size,
          .causal = true};
}

absl::Status AddWorkspaces(const PipelinePlan& plan, bool deterministic,
                           RunPrediction& prediction) {
  const RunOptions& run = plan.options();
  for (RankPrediction& rank : prediction.ranks) {
    for (const StageSpan& span : plan.StagesOf(rank.place.pp)) {
      TESSERA_ASSIGN_OR_RETURN(const StageShapes stage,
                               StageShapes::Of(run, rank.place, span));
      rank.workspaces = std::max(rank.workspaces,
                                 tensor_parallel::LibraryWorkspaceBytes(
                                     AttentionOf(stage, run), deterministic));
    }
  }
  return absl::OkStatus();
}

// The bytes that the ranks on this machine need. If other ranks are elsewhere,
// assumes that the largest ones are here.
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

int64_t RanksOfGpu(const RunPrediction& prediction) {
  if (!prediction.on_gpu || !prediction.shares_process) return 1;
  const auto& device = prediction.room.device;
  const int64_t gpus = device ? device->gpus : 1;
  return (prediction.ranks_here + gpus - 1) / gpus;
}

// A budget that is too small is an invalid setting.
absl::Status FlagOfBudget(const Settings& settings,
                          const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return RefuseFlag(
      "host_budget", settings.host_budget.ToString(),
      absl::StrCat("is too small: ", status.message(),
                   "; use a larger one, or a directory for the rest, such as "
                   "--offload_dir=DIR"));
}

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
  const bool on_gpu = absl::StartsWith(settings.device, "cuda");
  add(on_gpu && settings.deterministic, "--deterministic=false",
      [](Settings& to) { to.deterministic = false; });
  const auto offload = [&](std::string_view state, bool to_files) {
    const std::string what = WithActivationsOf(settings.offload, state);
    add(settings.offload != what || (to_files && settings.offload_dir.empty()),
        absl::StrCat("--offload=", what, to_files ? " --offload_dir=DIR" : ""),
        [what, to_files](Settings& to) {
          to.offload = what;
          if (to_files) to.offload_dir = "DIR";
        });
  };
  for (const bool to_files : {false, true}) {
    // Without a GPU, offloading to host memory saves nothing.
    if (!to_files && !on_gpu) continue;
    offload("optimizer", to_files);
    if (settings.zero == 3) offload("all", to_files);
  }
  return changes;
}

// Tries changes to the settings of one run.
class Advisor {
 public:
  Advisor(const model_files::ModelConfig& model, const RunPrediction& before)
      : model_(model), before_(before) {}

  std::vector<MemoryAdvice> Advise(const Settings& settings) const {
    const std::vector<Change> changes = ChangesOf(settings, before_.mesh);
    std::vector<MemoryAdvice> alone = TryEach(settings, changes);
    if (alone.empty() || alone.front().fits) return alone;
    return Combine(settings, changes);
  }

 private:
  // Bytes above the limits of the host and of a GPU.
  int64_t ExcessOf(int64_t needed, int64_t device_needed) const {
    const MachineRoom& room = before_.room;
    const int64_t host = std::max<int64_t>(needed - room.bytes, 0);
    if (!before_.on_gpu || !room.device) return host;
    return host + std::max<int64_t>(device_needed - room.device->bytes, 0);
  }
  int64_t ExcessAfter(const MemoryAdvice& advice) const {
    return ExcessOf(advice.needed, advice.device_needed);
  }
  int64_t ExcessBefore() const {
    return ExcessOf(before_.needed, before_.device_needed);
  }

  // Requires savings of 1 %, because a change of device memory may also save a
  // few bytes of host memory.
  static bool Helps(int64_t excess, int64_t before) {
    return excess < before - before / 100;
  }

  absl::StatusOr<MemoryAdvice> Try(const Settings& changed,
                                   std::string flag) const {
    TESSERA_ASSIGN_OR_RETURN(
        const RunPrediction after,
        MakePrediction(
            changed, model_,
            {.room = before_.room, .ranks_here = before_.ranks_here}));
    return MemoryAdvice{.flag = std::move(flag),
                        .needed = after.needed,
                        .device_needed = after.device_needed,
                        .fits = after.fits()};
  }

  // Returns the changes that help, the most effective one first.
  std::vector<MemoryAdvice> TryEach(const Settings& settings,
                                    const std::vector<Change>& changes) const {
    std::vector<MemoryAdvice> alone;
    for (const Change& change : changes) {
      Settings changed = settings;
      change.make(changed);
      auto advice = Try(changed, change.flag);
      if (!advice.ok() || !Helps(ExcessAfter(*advice), ExcessBefore())) {
        continue;
      }
      alone.push_back(*std::move(advice));
    }
    const bool of_device = !before_.fits_device().value_or(true);
    std::stable_sort(
        alone.begin(), alone.end(), [&](const auto& a, const auto& b) {
          const auto rank = [&](const MemoryAdvice& advice) {
            return std::pair(ExcessAfter(advice),
                             of_device ? advice.device_needed : advice.needed);
          };
          return rank(a) < rank(b);
        });
    return alone;
  }

  std::vector<MemoryAdvice> Combine(const Settings& settings,
                                    const std::vector<Change>& changes) const {
    std::vector<MemoryAdvice> together;
    Settings changed = settings;
    int64_t excess = ExcessBefore();
    for (const Change& change : changes) {
      Settings next = changed;
      change.make(next);
      auto advice = Try(next, change.flag);
      if (!advice.ok() || !Helps(ExcessAfter(*advice), excess)) continue;
      advice->and_before = !together.empty();
      excess = ExcessAfter(*advice);
      changed = std::move(next);
      together.push_back(*std::move(advice));
      if (together.back().fits) break;
    }
    return together;
  }

  const model_files::ModelConfig& model_;
  const RunPrediction& before_;
};

}  // namespace

int64_t RunPrediction::PeakOf(const RankPrediction& rank) const {
  const int64_t peak =
      on_gpu ? rank.host + rank.state.staging : rank.peak_bytes();
  return peak + (trains_while_saving ? rank.state.snapshot : 0) +
         CopiesOf(rank);
}

int64_t RunPrediction::CopiesOf(const RankPrediction& rank) const {
  constexpr int64_t kCopies = 4;
  return keeps_copies ? kCopies * rank.state.copy : 0;
}

std::optional<bool> RunPrediction::fits_device() const {
  if (!on_gpu || !room.device) return std::nullopt;
  return device_needed <= room.device->bytes;
}

int64_t RunPrediction::HeadroomOf(const RankPrediction& rank) const {
  constexpr int64_t kMost = int64_t{4} << 30;
  return on_gpu || on_emulated ? std::min(rank.device / 8, kMost) : 0;
}

int64_t RunPrediction::DeviceBytesOf(const RankPrediction& rank) const {
  return rank.device + HeadroomOf(rank) + rank.workspaces;
}

int64_t RunPrediction::device_bytes() const {
  int64_t most = 0;
  if (!on_gpu && !on_emulated) return most;
  for (const RankPrediction& rank : ranks) {
    most = std::max(most, DeviceBytesOf(rank));
  }
  return most;
}

const RankPrediction& RunPrediction::busiest() const {
  return *std::max_element(ranks.begin(), ranks.end(),
                           [](const auto& a, const auto& b) {
                             return a.traffic.Sent() < b.traffic.Sent();
                           });
}

StateHomes HomesOf(const Settings& settings) {
  const zero3::OffloadConfig config = OffloadConfigOf(settings);
  const OffloadChoice offload = OffloadChoice::Of(settings.offload);
  StateHomes homes = {.host_budget = config.host_budget,
                      .pinned = offload.any() && config.pin_memory};
  homes.spills = offload.any() && settings.host_budget > ByteSize() &&
                 !settings.offload_dir.empty();
  const StateHome away = settings.offload_dir.empty() || homes.spills
                             ? StateHome::kHost
                             : StateHome::kFiles;
  homes.compressed = settings.compression != "none";
  homes.on_device = !settings.device.empty() && settings.device != "cpu";
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
  TESSERA_RETURN_IF_ERROR(
      FlagOfBudget(settings, AddRanks(plan, HomesOf(settings), prediction)));
  TESSERA_ASSIGN_OR_RETURN(prediction.host_budget,
                           DescribeHostBudget(settings));
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
  prediction.keeps_copies = settings.snapshot_every > 0;
  prediction.trains_while_saving = settings.checkpoint_every > 0 &&
                                   settings.checkpoint_every < settings.steps;
  prediction.on_gpu = absl::StartsWith(settings.device, "cuda");
  prediction.on_emulated = settings.device == "emulated";
  // GPUs exchange tensors without shared memory.
  if ((settings.engine == "shared_memory" || settings.engine == "auto") &&
      !prediction.on_gpu) {
    AddWindows(settings.parallel.strategy, prediction);
  }
  if (prediction.on_gpu) {
    TESSERA_RETURN_IF_ERROR(
        AddWorkspaces(plan, settings.deterministic, prediction));
  }
  if (prediction.on_gpu && OffloadChoice::Of(settings.offload).optimizer) {
    for (RankPrediction& rank : prediction.ranks) {
      rank.host += std::min(settings.speculative_bytes, rank.state.host);
    }
  }
  prediction.needed = NeededHere(prediction);
  prediction.ranks_of_gpu = RanksOfGpu(prediction);
  prediction.device_needed =
      prediction.ranks_of_gpu * prediction.device_bytes();
  return prediction;
}

absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(RunPrediction prediction,
                           MakePrediction(settings, model, options));
  if (!prediction.fits()) {
    prediction.advice = Advisor(model, prediction).Advise(settings);
  }
  return prediction;
}

}  // namespace tessera::train
