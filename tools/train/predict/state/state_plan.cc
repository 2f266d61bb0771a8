#include "tools/train/predict/state/state_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "offload/optimizer/state/moment.h"
#include "pipeline/schedule/action.h"
#include "tools/train/predict/stage_shapes.h"
#include "zero3/config/zero_config.h"
#include "zero3/estimate/optimizer_state.h"
#include "zero3/layout/layout_options.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/use/use_order.h"

namespace tessera::train {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using zero3::ParameterId;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The parameters of all windows of a rank, as ShardedModel describes them.
class ModelOfRank {
 public:
  // By stage, the ids of each window.
  using Windows = std::map<int32_t, std::vector<std::vector<ParameterId>>>;

  void Add(int32_t stage, const StageShapes& shapes, const StageSpan& span) {
    auto& of_stage = windows_[stage];
    for (const WeightWindow& window : WindowsOf(shapes, span)) {
      auto& ids = of_stage.emplace_back();
      for (const WeightShape& weight : window) {
        ids.push_back(IdOf(weight, shapes.dtype));
      }
      ++group_;
    }
  }

  absl::StatusOr<zero3::ModelParameters> Build() { return builder_.Build(); }
  const Windows& windows() const { return windows_; }

 private:
  ParameterId IdOf(const WeightShape& weight, DType dtype) {
    const auto [found, is_new] = ids_.try_emplace(
        weight.name, ParameterId(static_cast<int64_t>(ids_.size())));
    if (is_new) {
      builder_.Add({.name = weight.name,
                    .shape = weight.shape,
                    .dtype = dtype,
                    .group = group_});
    }
    return found->second;
  }

  zero3::ModelParameters::Builder builder_;
  absl::flat_hash_map<std::string, ParameterId> ids_;
  Windows windows_;
  int64_t group_ = 0;
};

// What the state's options are in zero3's configuration, so that its rules can
// be asked.
absl::StatusOr<zero3::ZeroConfig> ConfigOf(
    const zero3::ShardedStateOptions& state, const StateHomes& homes) {
  if (state.far_tier != nullptr ||
      state.optimizer != zero3::OptimizerKind::kAdamW || !state.overlap) {
    return absl::UnimplementedError(
        "the state of a run is predicted for AdamW with overlap, one tier, no "
        "budget and gathers of one window ahead");
  }
  constexpr ByteSize kAny(kUnlimited);
  const auto is_away = [](StateHome home) {
    return home != StateHome::kMemory;
  };
  zero3::ZeroConfig config;
  config.stage = state.stage;
  config.layout = state.layout;
  config.alignment =
      std::lcm(state.alignment, std::max<int64_t>(state.moments.block, 1));
  config.offload_parameters = state.stage == 3 && is_away(homes.parameters);
  config.offload_gradients = state.stage >= 2 && is_away(homes.gradients);
  config.offload_optimizer = is_away(homes.optimizer);
  // All of it to files, or none.
  const bool in_files = homes.has(StateHome::kFiles);
  config.cpu_budget = in_files ? ByteSize(1) : kAny;
  config.swap_directory = in_files ? "files" : "";
  if (homes.compressed) config.compression = zero3::Compression::kLossless;
  config.device_parameter_budget = kAny;
  config.reduce_bucket_size = ByteSize(state.bucket_bytes);
  config.parameter_persistence_threshold = state.persistence_threshold;
  config.gradient_type = state.gradient_dtype == DType::kF32
                             ? zero3::GradientType::kFp32
                             : zero3::GradientType::kParameter;
  return config;
}

absl::StatusOr<zero3::OptimizerState> OptimizerOf(
    const offload::MomentFormat& moments) {
  switch (moments.type) {
    case offload::MomentType::kBF16:
      return zero3::OptimizerState{.type = zero3::MomentType::kBf16};
    case offload::MomentType::kBlockwise8:
      return zero3::OptimizerState{.type = zero3::MomentType::kBlock8,
                                   .block = moments.block};
    case offload::MomentType::kF32:
      return zero3::OptimizerState{};
    case offload::MomentType::kF64:
      break;
  }
  return absl::UnimplementedError("moments of f64 are not predicted");
}

// Where nothing limits what stays live, a parameter is gathered at its first
// use and released after its last: the computations between a stage's first
// and last (and last that uses the embedding) change nothing.
std::vector<Action> UsesThatMatter(const std::vector<Action>& list) {
  std::vector<Action> actions;
  for (const Action& action : list) {
    if (pipeline::Computes(action.kind)) actions.push_back(action);
  }
  std::map<int32_t, std::set<size_t>> first_and_last;
  std::map<int32_t, size_t> last_input, last;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (last.count(action.stage) == 0) first_and_last[action.stage].insert(i);
    last[action.stage] = i;
    if (pipeline::GivesInputGradient(action.kind)) last_input[action.stage] = i;
  }
  for (const auto& [stage, i] : last) first_and_last[stage].insert(i);
  for (const auto& [stage, i] : last_input) first_and_last[stage].insert(i);
  std::vector<Action> kept;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (first_and_last[actions[i].stage].count(i) > 0) {
      kept.push_back(actions[i]);
    }
  }
  return kept;
}

// The windows of the rank's passes, one after the other.
zero3::UseOrder OrderOf(const RunPlan& plan, const RankPlace& place,
                        const ModelOfRank::Windows& windows) {
  zero3::UseOrder order;
  const auto& list = plan.schedule().ranks[static_cast<size_t>(place.pp)];
  for (const Action& action : UsesThatMatter(list)) {
    std::vector<std::vector<ParameterId>> used = windows.at(action.stage);
    if (action.kind != ActionKind::kForward) {
      std::reverse(used.begin(), used.end());
    }
    // The gradient of the embedding comes with that of inputs.
    const bool skips = action.kind == ActionKind::kBackwardWeight &&
                       plan.SpanOf(action.stage).is_first;
    if (skips) used.pop_back();
    for (const auto& window : used) order.Use(window);
  }
  return order;
}

}  // namespace

absl::StatusOr<StatePlan> StatePlan::Create(const RunPlan& plan,
                                            const RankPlace& place,
                                            const StateHomes& homes) {
  const RunOptions& options = plan.options();
  ModelOfRank rank_model;
  for (const StageSpan& span : plan.StagesOf(place.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
                             StageShapes::Of(options, place, span));
    rank_model.Add(span.stage, shapes, span);
  }
  TESSERA_ASSIGN_OR_RETURN(const zero3::ModelParameters model,
                           rank_model.Build());
  TESSERA_ASSIGN_OR_RETURN(const zero3::ZeroConfig config,
                           ConfigOf(options.state, homes));
  TESSERA_ASSIGN_OR_RETURN(const zero3::OptimizerState optimizer,
                           OptimizerOf(options.state.moments));
  const int64_t data_ranks = options.mesh.shard_ranks();
  TESSERA_ASSIGN_OR_RETURN(
      zero3::MemoryModel memory,
      zero3::MemoryModel::Create(
          model, config,
          {.ranks = data_ranks,
           .optimizer = optimizer,
           .order = OrderOf(plan, place, rank_model.windows()),
           .holds_gradients = true}));
  StatePlan state(std::move(memory));
  state.options_ = options.state;
  state.homes_ = homes;
  state.data_ranks_ = data_ranks;
  state.data_rank_ = topology::Rank(
      place.cp + options.mesh.cp * (place.dp % options.mesh.dp_shard()));
  std::vector<DType> dtypes;
  for (const zero3::Parameter& parameter : model.all()) {
    dtypes.push_back(SizeInBytes(parameter.dtype()) < 4
                         ? options.state.gradient_dtype
                         : parameter.dtype());
  }
  state.buckets_ = zero3::ReduceBuckets::Of(state.layout(), dtypes,
                                            options.state.bucket_bytes);
  return state;
}

bool StatePlan::IsWhole(const zero3::Parameter& parameter) const {
  const bool is_alone =
      layout().ranks() == 1 && homes_.parameters == StateHome::kMemory;
  return options_.stage < 3 || is_alone || parameter.elements == 0 ||
         layout().IsSmall(parameter.id);
}

}  // namespace tessera::train
