#include "tools/train/settings/run_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/passes/split_stages.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/synthesize/placement.h"
#include "pipeline/synthesize/synthesize.h"
#include "tools/text/samples.h"
#include "topology/config/layer_split.h"

namespace tessera::train {
namespace {

using pipeline::Action;
using pipeline::ReducePlacement;
using pipeline::Schedule;
using pipeline::StageCosts;

// The share of a step's simulated time that may be spent to save memory.
constexpr double kSlack = 0.05;

// Elements of the windows' parameters on a tensor rank, rounded up.
struct WindowSizes {
  int64_t embedding = 0;
  int64_t layer = 0;
  int64_t head = 0;  // Without a shared table.
  int64_t shared = 0;
  int64_t adapters = 0;  // Per layer; 0: all weights are trained.
};

WindowSizes SizesOf(const RunOptions& options) {
  const model_files::ModelConfig& model = options.model;
  const int64_t tp = options.mesh.tp;
  const auto part = [tp](int64_t elements) { return (elements + tp - 1) / tp; };
  const int64_t query = model.heads * model.head_size;
  const int64_t kv = std::max(model.kv_heads, tp) * model.head_size;
  WindowSizes sizes;
  sizes.embedding = part(model.vocabulary * model.hidden);
  const model_files::MixtureConfig& mixture = model.mixture;
  const int64_t experts = mixture.experts / options.mesh.ep;
  int64_t mlp = 3 * model.intermediate;
  if (mixture.experts > 0) {
    mlp = 3 * (experts * mixture.intermediate + mixture.shared_intermediate);
    if (mixture.dense_layers > 0) mlp = std::max(mlp, 3 * model.intermediate);
  }
  int64_t attention = model.hidden * (2 * query + 2 * kv);
  int64_t whole = model.hidden * (2 + mixture.experts);
  if (model.IsLatent()) {
    attention = model.QueryInputs() * query +
                model.hidden * model.OutputColumns() +
                model.heads * model.latent.kv_rank *
                    (model.latent.nope + model.latent.value);
    whole += model.hidden * model.LatentRows();
  }
  sizes.layer = part(attention + model.hidden * mlp) + whole;
  const bool shares = model.tied_embeddings && options.mesh.pp == 1;
  sizes.head = model.hidden + (shares ? 0 : sizes.embedding);
  sizes.shared = shares ? sizes.embedding : 0;
  if (options.lora.rank == 0) return sizes;
  // Each projection of a fused tensor has its own factor a for all inputs.
  if (options.lora_attention) {
    int64_t factors = 4 * model.hidden + part(2 * query + 2 * kv);
    if (model.IsLatent()) {
      const model_files::LatentConfig& latent = model.latent;
      factors = (latent.query_rank > 0 ? 3 : 2) * model.hidden +
                model.LatentRows() + model.QueryInputs() + latent.kv_rank +
                part(query + model.OutputColumns() +
                     model.heads * (latent.nope + latent.value));
    }
    sizes.adapters += options.lora.rank * factors;
  }
  if (options.lora_mlp) {
    const auto factors = [&](int64_t intermediate) {
      return 3 * model.hidden + part(3 * intermediate);
    };
    int64_t mlp = factors(model.intermediate);
    if (mixture.experts > 0) {
      // An expert's gate and up share their factor a.
      const int64_t expert = factors(mixture.intermediate) - model.hidden;
      const int64_t shared = mixture.shared_intermediate;
      mlp = experts * expert + (shared > 0 ? factors(shared) : 0);
    }
    sizes.adapters += options.lora.rank * mlp;
  }
  sizes.layer += sizes.adapters;
  return sizes;
}

// The costs of a window in which `trained` elements have gradients. `flops` are
// the operations of a forward.
StageCosts CostsOf(const RunOptions& options, const StepRates& rates,
                   int64_t elements, int64_t shared, int64_t trained,
                   double flops) {
  const double rate = rates.flops_per_second * options.state.adamw.threads;
  const int64_t ranks = options.mesh.shard_ranks();
  const double sent = static_cast<double>(ranks - 1) /
                      static_cast<double>(ranks) / rates.bytes_per_second;
  const zero3::ShardedStateOptions& state = options.state;
  const int64_t width = SizeInBytes(options.dtype);
  const int64_t gradient_width =
      width < 4 ? SizeInBytes(state.gradient_dtype) : width;
  StageCosts costs{.forward = flops / rate,
                   .backward_input = flops / rate,
                   .backward_weight = trained == elements ? flops / rate : 0,
                   .forward_bytes = 0,
                   .backward_weight_bytes = 0};
  const bool is_away = ranks > 1 || state.parameter_tier != nullptr ||
                       !options.base_codec.empty();
  if (state.stage == 3 && is_away &&
      elements + shared >= state.persistence_threshold) {
    costs.unsharded_bytes = (elements + shared) * width;
    costs.unshard = static_cast<double>(costs.unsharded_bytes) * sent;
  }
  const double gradient_bytes = static_cast<double>(trained * gradient_width);
  costs.reduce_gradient = gradient_bytes * sent;
  if (state.stage >= 2 && (ranks > 1 || state.gradient_tier != nullptr)) {
    costs.unreduced_bytes = trained * gradient_width;
  }
  return costs;
}

absl::Status CheckShape(const Schedule& schedule, const RunOptions& options,
                        int64_t micro_batches) {
  if (schedule.map.ranks() != options.mesh.pp ||
      schedule.microbatches != micro_batches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedule's table has ", schedule.map.ranks(), " ranks and ",
        schedule.microbatches, " micro-batches; the run has pp ",
        options.mesh.pp, " and ", micro_batches));
  }
  if (schedule.map.stages() > options.model.layers + 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedule's table has ", schedule.map.stages(),
        " stages; the model has ", options.model.layers, " layers"));
  }
  return absl::OkStatus();
}

// Removes the messages of a table; AddCommunication adds them again.
Schedule WithoutMessages(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.ranks) {
    std::vector<Action> kept;
    for (const Action& action : actions) {
      if (!pipeline::Communicates(action.kind)) kept.push_back(action);
    }
    actions = std::move(kept);
  }
  return schedule;
}

// A table may have a stage per window and place gathers and reductions itself.
bool IsByWindow(const RunOptions& options, const Schedule& schedule) {
  return options.schedule == "file" &&
         schedule.map.stages() == options.model.layers + 2;
}

bool HasParameterActions(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (!pipeline::HasMicroBatch(action.kind)) return true;
    }
  }
  return false;
}

absl::StatusOr<std::vector<int64_t>> LayersOfStages(const RunOptions& options,
                                                    int64_t stages) {
  const topology::LayerSplit split = {.counts = options.layers_per_stage};
  return split.LayersPerStage(options.model.layers, stages);
}

absl::StatusOr<Schedule> Synthesized(const RunOptions& options,
                                     int64_t micro_batches) {
  const int64_t stages = options.mesh.pp * options.chunks;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> layers,
                           LayersOfStages(options, stages));
  const pipeline::Costs windows = WindowCosts(options);
  pipeline::SynthesisProblem problem{.ranks = options.mesh.pp,
                                     .chunks = options.chunks,
                                     .microbatches = micro_batches};
  size_t window = 1;  // After the embedding.
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    StageCosts costs{.forward = 0, .backward_input = 0, .backward_weight = 0};
    const size_t end = stage + 1 == layers.size()
                           ? windows.stages.size()
                           : window + static_cast<size_t>(layers[stage]);
    for (; window < end; ++window) {
      costs.forward += windows.stages[window].forward;
      costs.backward_input += windows.stages[window].backward_input;
      costs.backward_weight += windows.stages[window].backward_weight;
    }
    problem.costs.stages.push_back(costs);
  }
  TESSERA_ASSIGN_OR_RETURN(
      pipeline::Synthesis best,
      pipeline::Synthesize(problem, {.prefer_makespan = true, .effort = 0.1}));
  return std::move(best.schedule);
}

absl::StatusOr<Schedule> StageSchedule(const RunOptions& options,
                                       int64_t micro_batches) {
  if (options.schedule == "auto") return Synthesized(options, micro_batches);
  if (options.schedule != "file") {
    return pipeline::Generate(options.schedule,
                              {.ranks = options.mesh.pp,
                               .chunks = options.chunks,
                               .microbatches = micro_batches});
  }
  TESSERA_ASSIGN_OR_RETURN(Schedule schedule,
                           pipeline::ReadCsv(options.schedule_table, "file"));
  schedule = WithoutMessages(std::move(schedule));
  TESSERA_RETURN_IF_ERROR(CheckShape(schedule, options, micro_batches));
  return schedule;
}

// The number of windows per stage. The first stage includes the embedding, the
// last stage the head. If there are more stages than layers, some stages have
// no layer and forward their input.
absl::StatusOr<std::vector<int64_t>> WindowsOfStages(const RunOptions& options,
                                                     int64_t stages) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> windows,
                           LayersOfStages(options, stages));
  ++windows.front();
  ++windows.back();
  return windows;
}

// True if gradients are not partitioned. Reducing them earlier would save no
// memory, and the sum over tensor ranks, which is in place, must happen once.
bool ReducesInPlace(const RunOptions& options) {
  return options.state.stage < 2 || (options.mesh.shard_ranks() == 1 &&
                                     options.state.gradient_tier == nullptr);
}

std::vector<ReducePlacement> ReducesFor(const RunOptions& options) {
  // A single rank sums its micro-batches in the same order either way, so that
  // its results have the same bits with and without offloaded gradients.
  const bool is_alone =
      options.mesh.shard_ranks() == 1 && options.reduce == ReduceChoice::kAuto;
  if (ReducesInPlace(options) || is_alone ||
      options.reduce == ReduceChoice::kLastMicroBatch) {
    return {ReducePlacement::kLastMicroBatch};
  }
  if (options.reduce == ReduceChoice::kEachMicroBatch) {
    return {ReducePlacement::kEachMicroBatch};
  }
  return {ReducePlacement::kEachMicroBatch, ReducePlacement::kLastMicroBatch};
}

absl::Status CheckGatheredLimit(const RunOptions& options,
                                const pipeline::Costs& costs) {
  if (options.max_gathered_bytes == 0) return absl::OkStatus();
  const auto largest =
      std::max_element(costs.stages.begin(), costs.stages.end(),
                       [](const StageCosts& a, const StageCosts& b) {
                         return a.unsharded_bytes < b.unsharded_bytes;
                       });
  if (largest->unsharded_bytes <= options.max_gathered_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "gathered weights are limited to ", options.max_gathered_bytes,
      " bytes, and ",
      WindowName(options, static_cast<int32_t>(largest - costs.stages.begin())),
      " alone has ", largest->unsharded_bytes, "; allow at least as many"));
}

// A table that places gathers or reductions must place them for all windows.
absl::Status CheckOwnPlacement(const Schedule& schedule,
                               const RunOptions& options,
                               const pipeline::Costs& costs) {
  std::vector<bool> gathered(costs.stages.size()), reduced(costs.stages.size());
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<bool> once(costs.stages.size());
    for (const Action& action : actions) {
      const auto stage = static_cast<size_t>(action.stage);
      if (action.kind == pipeline::ActionKind::kUnshard) gathered[stage] = true;
      if (action.kind != pipeline::ActionKind::kReduceGradient) continue;
      reduced[stage] = true;
      if (once[stage] && ReducesInPlace(options)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the schedule's table has ", action.stage, "REDUCE_GRAD more than ",
            "once a step, of the ", WindowName(options, action.stage),
            "; gradients that are not sharded are reduced once"));
      }
      once[stage] = true;
    }
  }
  for (size_t i = 0; i < costs.stages.size(); ++i) {
    const bool misses_gather =
        costs.stages[i].unsharded_bytes > 0 && !gathered[i];
    if (!misses_gather && reduced[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedule's table lacks ", i,
        misses_gather ? "UNSHARD" : "REDUCE_GRAD", ", of the ",
        WindowName(options, static_cast<int32_t>(i)),
        "; give both for all stages, or leave them out and they are added"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string WindowName(const RunOptions& options, int32_t window) {
  if (window == 0) return "embedding";
  if (window == options.model.layers + 1) return "head";
  return absl::StrCat("layer ", window - 1);
}

pipeline::Costs WindowCosts(const RunOptions& options, const StepRates& rates) {
  const model_files::ModelConfig& model = options.model;
  const WindowSizes sizes = SizesOf(options);
  const double tokens = static_cast<double>(options.micro_batch) *
                        static_cast<double>(options.length) /
                        static_cast<double>(options.mesh.cp);
  const double attention = 2 * tokens * static_cast<double>(options.length) *
                           static_cast<double>(model.heads * model.head_size) /
                           static_cast<double>(options.mesh.tp);
  const auto product = [&](int64_t elements) {
    return 2 * tokens * static_cast<double>(elements);
  };
  pipeline::Costs costs;
  const auto trained = [&](int64_t elements, int64_t adapters) {
    return options.lora.rank == 0 ? elements : adapters;
  };
  costs.stages.push_back(CostsOf(options, rates, sizes.embedding, 0,
                                 trained(sizes.embedding, 0), 0));
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    costs.stages.push_back(CostsOf(options, rates, sizes.layer, 0,
                                   trained(sizes.layer, sizes.adapters),
                                   product(sizes.layer) + attention));
  }
  costs.stages.push_back(CostsOf(options, rates, sizes.head, sizes.shared,
                                 trained(sizes.head, 0),
                                 product(sizes.embedding)));
  return costs;
}

absl::StatusOr<RunStages> StagesOfRun(const RunOptions& options) {
  TESSERA_RETURN_IF_ERROR(options.model.Validate());
  TESSERA_ASSIGN_OR_RETURN(
      const text::BatchPartition batch,
      text::BatchPartition::Create(options.batch, options.mesh.dp,
                                   options.micro_batch));
  RunStages run;
  TESSERA_ASSIGN_OR_RETURN(run.schedule,
                           StageSchedule(options, batch.micro_batches()));
  if (IsByWindow(options, run.schedule)) {
    run.windows.assign(static_cast<size_t>(run.schedule.map.stages()), 1);
  } else {
    TESSERA_ASSIGN_OR_RETURN(
        run.windows, WindowsOfStages(options, run.schedule.map.stages()));
  }
  return run;
}

absl::StatusOr<RunSchedule> RunSchedule::Create(const RunOptions& options) {
  RunSchedule run;
  TESSERA_ASSIGN_OR_RETURN(run.stages_, StagesOfRun(options));
  const pipeline::Costs costs = WindowCosts(options);
  TESSERA_RETURN_IF_ERROR(CheckGatheredLimit(options, costs));
  const Schedule& stages = run.stages_.schedule;
  if (HasParameterActions(stages)) {
    if (!IsByWindow(options, stages)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the schedule's table gathers or reduces pipeline stages; only one "
          "of ",
          costs.stages.size(),
          " stages (the embedding, each layer and the head) may: leave ",
          "UNSHARD, RESHARD and REDUCE_GRAD out, and they are added"));
    }
    TESSERA_RETURN_IF_ERROR(CheckOwnPlacement(stages, options, costs));
    run.layers_ = stages;
  } else {
    TESSERA_ASSIGN_OR_RETURN(
        const Schedule split,
        pipeline::SplitStages(stages, run.stages_.windows));
    std::vector<int64_t> prefetches = {options.gather_ahead};
    if (options.max_gathered_bytes > 0)
      prefetches = {0, 1, 2, 4, 8, 16, 1 << 30};
    TESSERA_ASSIGN_OR_RETURN(
        pipeline::Placement placed,
        pipeline::ChoosePlacement(
            split, costs,
            {.prefetches = prefetches,
             .reduces = ReducesFor(options),
             .max_unsharded_bytes = options.max_gathered_bytes,
             .slack = kSlack}));
    run.layers_ = std::move(placed.schedule);
    run.placement_ = std::move(placed.options);
  }
  TESSERA_ASSIGN_OR_RETURN(run.lowered_,
                           pipeline::AddCommunication(run.layers_));
  pipeline::ValidateOptions prove;
  for (const StageCosts& stage : costs.stages) {
    prove.parameters.unsharded_bytes.push_back(stage.unsharded_bytes);
    prove.parameters.unreduced_bytes.push_back(stage.unreduced_bytes);
  }
  TESSERA_ASSIGN_OR_RETURN(run.proof_, Validate(run.lowered_, prove));
  return run;
}

std::string RunSchedule::Describe() const {
  const bool gathers =
      std::any_of(proof_.peak_unsharded.begin(), proof_.peak_unsharded.end(),
                  [](int64_t stages) { return stages > 0; });
  return absl::StrCat(
      gathers ? absl::StrCat("gathers weights ", placement_.prefetch,
                             placement_.prefetch == 1 ? " layer" : " layers",
                             " ahead, ")
              : "",
      "reduces gradients ",
      placement_.reduce == ReducePlacement::kEachMicroBatch
          ? "at each micro-batch"
          : "at the last micro-batch");
}

}  // namespace tessera::train
