// What ShardedState::Create makes.
#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/values/live_limit.h"

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

absl::StatusOr<std::unique_ptr<collectives::Communicator>> Copy(
    collectives::Communicator& group, std::string_view name) {
  std::vector<topology::Rank> members;
  for (int64_t r = 0; r < group.size(); ++r) members.emplace_back(r);
  return group.Subgroup(members, absl::StrCat(group.name(), "/", name));
}

// Stage 0 has the whole state on every rank, as though that were alone.
absl::StatusOr<StateSeat> SeatOf(const ModelParameters& model,
                                 const ShardedStateOptions& options,
                                 const collectives::Communicator& shard) {
  const bool is_partitioned = options.stage > 0;
  LayoutOptions layout = {
      .kind = options.layout,
      .ranks = is_partitioned ? shard.size() : 1,
      .alignment = std::lcm(options.alignment,
                            std::max<int64_t>(options.moments.block, 1)),
      .small_below = options.stage == 3 ? options.persistence_threshold : 0};
  TESSERA_ASSIGN_OR_RETURN(StateLayout created,
                           StateLayout::Create(model, layout));
  StateDevice device(options.device);
  if (device.accounting == nullptr) {
    device.accounting =
        std::make_shared<offload::Accounting>("device", offload::kUnlimited);
  }
  if (options.memory != nullptr) device.memory = options.memory;
  if (options.ops != nullptr) device.ops = options.ops;
  return StateSeat{std::move(created),
                   is_partitioned ? shard.rank() : topology::Rank(0),
                   std::move(device)};
}

// Those that have a slot here, in the order of slots, then the others.
std::vector<const Parameter*> BySlot(const StateSeat& seat) {
  std::vector<const Parameter*> parameters;
  std::vector<bool> seen(static_cast<size_t>(seat.model().count()), false);
  for (const Extent& extent : seat.layout.ExtentsOf(seat.rank)) {
    seen[IndexOf(extent.parameter)] = true;
    parameters.push_back(&seat.model()[extent.parameter]);
  }
  for (const Parameter& parameter : seat.model().all()) {
    if (!seen[IndexOf(parameter.id)]) parameters.push_back(&parameter);
  }
  return parameters;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedState>> ShardedState::Create(
    const ModelParameters& model, const ShardedStateOptions& options,
    const ShardedStateGroups& groups) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options, model));
  if (groups.shard == nullptr) {
    return absl::InvalidArgumentError(
        "a sharded state needs a shard group, of one rank at least");
  }
  TESSERA_ASSIGN_OR_RETURN(StateSeat seat,
                           SeatOf(model, options, *groups.shard));
  std::unique_ptr<ShardedState> state(new ShardedState(seat, options));
  TESSERA_RETURN_IF_ERROR(state->JoinGroups(groups));
  TESSERA_RETURN_IF_ERROR(state->CreateParameters());
  TESSERA_RETURN_IF_ERROR(state->CreateGradients());
  TESSERA_RETURN_IF_ERROR(state->CreateOptimizer());
  return state;
}

absl::Status ShardedState::JoinGroups(const ShardedStateGroups& groups) {
  TESSERA_ASSIGN_OR_RETURN(groups_.gather, Copy(*groups.shard, "gather"));
  TESSERA_ASSIGN_OR_RETURN(groups_.reduce, Copy(*groups.shard, "reduce"));
  TESSERA_ASSIGN_OR_RETURN(groups_.agree, Copy(*groups.shard, "agree"));
  if (groups.replicas != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(groups_.replicas,
                             Copy(*groups.replicas, "reduce"));
  }
  if (groups.model != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(groups_.model, Copy(*groups.model, "norm"));
  }
  return absl::OkStatus();
}

ShardStoreOptions ShardedState::StoreOptions(offload::Purpose purpose) const {
  return {.purpose = purpose,
          .device = seat_.device,
          .writes_behind = options_.overlap ? 1u : 0u};
}

// A rank that is alone with its shards in memory has everything whole as well.
bool ShardedState::IsWhole(const Parameter& parameter) const {
  const bool is_alone =
      seat_.layout.ranks() == 1 && options_.parameter_tier == nullptr;
  return options_.stage < 3 || is_alone || parameter.elements == 0 ||
         seat_.layout.IsSmall(parameter.id);
}

absl::Status ShardedState::CreateParameters() {
  std::vector<ParameterId> whole;
  for (const Parameter& parameter : seat_.model().all()) {
    if (IsWhole(parameter)) whole.push_back(parameter.id);
  }
  TESSERA_ASSIGN_OR_RETURN(
      whole_,
      WholeParameters::Create(seat_, std::move(whole), *groups_.gather));
  std::vector<ShardBlock> shards;
  std::vector<size_t> shard_of(static_cast<size_t>(seat_.model().count()),
                               LiveParameters::kNoShard);
  for (const Parameter* parameter : BySlot(seat_)) {
    if (IsWhole(*parameter)) continue;
    const int64_t bytes =
        seat_.OwnExtent(parameter->id).slot * SizeInBytes(parameter->dtype());
    shard_of[IndexOf(parameter->id)] = shards.size();
    shards.push_back(
        {absl::StrCat(options_.key_prefix, "parameter/", parameter->id.value()),
         bytes, parameter->dtype(),
         tiers_.For(options_.parameter_tier, bytes)});
  }
  if (options_.stage == 3) {
    TESSERA_ASSIGN_OR_RETURN(
        value_shards_,
        ShardStore::Create(std::move(shards),
                           StoreOptions(offload::Purpose::kParameters)));
    TESSERA_RETURN_IF_ERROR(CreateLive(shard_of));
  }
  own_values_ = std::make_unique<OwnValues>(seat_, *whole_, value_shards_.get(),
                                            shard_of);
  return absl::OkStatus();
}

absl::Status ShardedState::CreateLive(const std::vector<size_t>& shard_of) {
  guard_ = std::make_unique<UseGuard>(
      seat_.model(), *groups_.agree,
      std::vector<collectives::Communicator*>{groups_.gather.get(),
                                              groups_.reduce.get()});
  const int64_t max_live = LiveLimit(
      seat_.layout, {.max_elements = options_.max_live_elements,
                     .budget_bytes = options_.value_budget_bytes,
                     .shards_in_tier = options_.parameter_tier != nullptr});
  live_ = std::make_unique<LiveParameters>(
      seat_,
      LiveOptions{.reuse = {.max_live = max_live,
                            .max_reuse_distance = options_.max_reuse_distance},
                  .prefetch_windows = options_.prefetch_windows,
                  .prefetch_shards = options_.prefetch_shards},
      *groups_.gather, *guard_, *value_shards_, shard_of);
  return absl::OkStatus();
}

absl::Status ShardedState::CreateGradients() {
  std::vector<DType> dtypes;
  for (const Parameter& parameter : seat_.model().all()) {
    dtypes.push_back(SizeInBytes(parameter.dtype()) < 4
                         ? options_.gradient_dtype
                         : parameter.dtype());
  }
  std::vector<ShardBlock> shards;
  std::vector<size_t> shard_of(dtypes.size());
  for (const Parameter* parameter : BySlot(seat_)) {
    if (!parameter->trainable()) continue;
    const DType dtype = dtypes[IndexOf(parameter->id)];
    const int64_t bytes =
        seat_.OwnExtent(parameter->id).slot * SizeInBytes(dtype);
    shard_of[IndexOf(parameter->id)] = shards.size();
    shards.push_back(
        {absl::StrCat(options_.key_prefix, "gradient/", parameter->id.value()),
         bytes, dtype, tiers_.For(options_.gradient_tier, bytes)});
  }
  if (options_.stage >= 2) {
    TESSERA_ASSIGN_OR_RETURN(
        gradient_shards_,
        ShardStore::Create(std::move(shards),
                           StoreOptions(offload::Purpose::kGradients)));
  }
  TESSERA_ASSIGN_OR_RETURN(
      gradients_,
      GradientReducer::Create(
          seat_, dtypes,
          {.bucket_bytes = options_.bucket_bytes,
           .average = options_.average_gradients,
           .overlap = options_.overlap},
          {.shard = groups_.reduce.get(), .replicas = groups_.replicas.get()},
          gradient_shards_.get(), shard_of));
  return absl::OkStatus();
}

absl::Status ShardedState::CreateOptimizer() {
  TESSERA_ASSIGN_OR_RETURN(
      optimizer_, OptimizerShard::Create(seat_,
                                         {.kind = options_.optimizer,
                                          .adamw = options_.adamw,
                                          .sgd = options_.sgd,
                                          .moments = options_.moments,
                                          .tier = options_.optimizer_tier,
                                          .key_prefix = options_.key_prefix,
                                          .overlap = options_.overlap},
                                         tiers_));
  return absl::OkStatus();
}

}  // namespace tessera::zero3
