#include "zero3/state/sharded_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

namespace {

absl::Status AtLeast(std::string_view name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be at least ", least));
}

absl::Status CheckTiers(const ShardedStateOptions& options) {
  if (options.parameter_tier != nullptr && options.stage < 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameters in a tier at stage ", options.stage,
        ": below stage 3 every rank computes with all of them; use stage 3"));
  }
  if (options.gradient_tier != nullptr && options.stage < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradients in a tier at stage ", options.stage,
        ": below stage 2 every rank has all of them; use stage 2 or 3"));
  }
  if (options.optimizer_on_host.value_or(false) &&
      options.optimizer_tier == nullptr) {
    return absl::InvalidArgumentError(
        "optimizer_on_host without optimizer_tier: the optimizer's state is in "
        "memory of the device; give it a tier, such as a HostTier");
  }
  TESSERA_RETURN_IF_ERROR(
      AtLeast("speculative_bytes", options.speculative_bytes, 0));
  if (options.speculative_bytes > 0 && options.optimizer_tier == nullptr) {
    return absl::InvalidArgumentError(
        "speculative_bytes without optimizer_tier: the device steps the "
        "optimizer's state when the norm is known; give it a tier, such as a "
        "HostTier");
  }
  return absl::OkStatus();
}

absl::Status CheckLossless(std::string_view option,
                           const offload::MemoryTier* tier,
                           offload::Purpose purpose, DType dtype,
                           std::string_view advice) {
  if (tier == nullptr || tier->IsLossless(purpose, dtype)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " \"", tier->name(), "\" rounds ",
                   offload::PurposeName(purpose), " of ", DTypeName(dtype),
                   ", which the next step needs exactly; ", advice));
}

// State without another copy requires a lossless tier.
absl::Status CheckTiersAreLossless(const ShardedStateOptions& options,
                                   const ModelParameters& model) {
  std::vector<DType> of_optimizer = {DType::kF32};
  if (options.moments.type == offload::MomentType::kBF16) {
    of_optimizer.push_back(DType::kBF16);
  }
  for (const ModelParameter& parameter : model.all()) {
    if (!parameter.trainable()) continue;
    const DType dtype = parameter.dtype();
    if (dtype == DType::kF64) of_optimizer.push_back(dtype);
    if (SizeInBytes(dtype) < 4 || options.parameter_tier == nullptr) continue;
    constexpr std::string_view kAdvice =
        "use a lossless tier, or parameters of 16 bits, which have master "
        "weights apart";
    TESSERA_RETURN_IF_ERROR(
        CheckLossless("parameter_tier", options.parameter_tier,
                      offload::Purpose::kParameters, dtype, kAdvice));
  }
  if (options.optimizer_tier == nullptr) return absl::OkStatus();
  constexpr std::string_view kAdvice =
      "use a lossless tier, and for smaller moments the option moments, such "
      "as MomentFormat::Blockwise8()";
  for (const DType dtype : of_optimizer) {
    TESSERA_RETURN_IF_ERROR(
        CheckLossless("optimizer_tier", options.optimizer_tier,
                      offload::Purpose::kOptimizer, dtype, kAdvice));
  }
  return absl::OkStatus();
}

absl::Status CheckNormRanges(const ShardedStateOptions& options,
                             const ModelParameters& model) {
  const auto& counted = options.counted_in_norm;
  if (counted.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(counted.size()) != model.count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("counted_in_norm has ", counted.size(),
                     " entries; the model has ", model.count(), " parameters"));
  }
  for (const ModelParameter& parameter : model.all()) {
    for (const ElementRange& range :
         counted[static_cast<size_t>(parameter.id.value())]) {
      if (0 <= range.begin && range.begin <= range.end &&
          range.end <= parameter.elements) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("counted_in_norm has elements [", range.begin, ", ",
                       range.end, ") of parameter \"", parameter.name(),
                       "\", which has ", parameter.elements));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(const ShardedStateOptions& options,
                        const ModelParameters& model) {
  const DType gradient = options.gradient_dtype;
  if (gradient != DType::kF32 && gradient != DType::kBF16 &&
      gradient != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients of ", DTypeName(gradient),
                     "; they may be of f32, bf16 and f16"));
  }
  for (const ModelParameter& parameter : model.all()) {
    if (!parameter.trainable()) continue;
    const DType dtype = parameter.dtype();
    if (dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
        dtype == DType::kF16) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.name(), "\" is of ",
                     DTypeName(dtype), "; f64, f32, bf16 and f16 are trained"));
  }
  return absl::OkStatus();
}

absl::Status CheckMuon(const ShardedStateOptions& options,
                       const ModelParameters& model) {
  const bool is_muon = options.optimizer == OptimizerKind::kMuon;
  for (const ModelParameter& parameter : model.all()) {
    if (!parameter.spec.orthogonalized) continue;
    if (!is_muon) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter \"", parameter.name(),
                       "\" is orthogonalized, which is the work of Muon; use "
                       "OptimizerKind::kMuon"));
    }
    if (!parameter.trainable() || parameter.spec.shape.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter \"", parameter.name(), "\" of ",
                       parameter.spec.shape.size(), " dimensions",
                       parameter.trainable() ? "" : ", not trained,",
                       " cannot be orthogonalized; only trained matrices can"));
    }
  }
  if (!is_muon) return absl::OkStatus();
  if (options.moments.block > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "moments of ", options.moments.ToString(),
        " with Muon, whose matrices begin anywhere in a block; use f32 or "
        "bf16"));
  }
  if (options.optimizer_on_host.value_or(false) ||
      options.speculative_bytes > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.speculative_bytes > 0 ? "speculative_bytes"
                                      : "optimizer_on_host",
        " with Muon, whose matrices the device updates; leave it out"));
  }
  return absl::OkStatus();
}

absl::Status CheckZeroPlusPlus(const ShardedStateOptions& options) {
  TESSERA_RETURN_IF_ERROR(
      AtLeast("hpz_partition_size", options.hpz_partition_size, 0));
  if (options.quantized_gradients && options.stage < 1) {
    return absl::InvalidArgumentError(
        "quantized_gradients at stage 0: every rank sums all gradients; use "
        "stage 1, 2 or 3");
  }
  const std::string_view needs_shards =
      options.quantized_weights        ? "quantized_weights"
      : options.hpz_partition_size > 0 ? "hpz_partition_size"
                                       : "";
  if (needs_shards.empty() || options.stage == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(needs_shards, " at stage ", options.stage,
                   ": below stage 3 no weights are gathered; use stage 3"));
}

}  // namespace

absl::Status CheckOptions(const ShardedStateOptions& options,
                          const ModelParameters& model) {
  if (options.stage < 0 || options.stage > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", options.stage, "; there are stages 0 to 3"));
  }
  TESSERA_RETURN_IF_ERROR(AtLeast("alignment", options.alignment, 1));
  TESSERA_RETURN_IF_ERROR(
      AtLeast("persistence_threshold", options.persistence_threshold, 0));
  TESSERA_RETURN_IF_ERROR(AtLeast("bucket_bytes", options.bucket_bytes, 1));
  if (!(options.clip_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("clip_norm is ", options.clip_norm,
                     "; it must be 0 (no clipping) or positive"));
  }
  TESSERA_RETURN_IF_ERROR(CheckNormRanges(options, model));
  TESSERA_RETURN_IF_ERROR(CheckLossScale(options.loss_scale));
  TESSERA_RETURN_IF_ERROR(offload::CheckMomentFormat(options.moments));
  TESSERA_RETURN_IF_ERROR(CheckTypes(options, model));
  TESSERA_RETURN_IF_ERROR(CheckMuon(options, model));
  TESSERA_RETURN_IF_ERROR(CheckZeroPlusPlus(options));
  TESSERA_RETURN_IF_ERROR(CheckTiers(options));
  return CheckTiersAreLossless(options, model);
}

namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

absl::StatusOr<std::unique_ptr<collectives::Communicator>> Copy(
    collectives::Communicator& group, std::string_view name) {
  std::vector<topology::Rank> members;
  for (int64_t r = 0; r < group.size(); ++r) members.emplace_back(r);
  return group.Subgroup(members, absl::StrCat(group.name(), "/", name));
}

// Stage 0 has the whole state on every rank, as with a single rank.
absl::StatusOr<StateContext> SeatOf(const ModelParameters& model,
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
  StateDevice device(options.device,
                     options.queue == nullptr ? HostQueue() : *options.queue);
  if (device.accounting == nullptr) {
    device.accounting =
        std::make_shared<offload::Accounting>("device", offload::kUnlimited);
  }
  if (options.ops != nullptr) device.ops = options.ops;
  return StateContext{std::move(created),
                      is_partitioned ? shard.rank() : topology::Rank(0),
                      std::move(device)};
}

// All parameters: first those with a slot on this rank, in the order of slots,
// then the others.
std::vector<const ModelParameter*> BySlot(const StateContext& context) {
  std::vector<const ModelParameter*> parameters;
  std::vector<bool> seen(static_cast<size_t>(context.model().count()), false);
  for (const Extent& extent : context.layout.ExtentsOf(context.rank)) {
    seen[IndexOf(extent.parameter)] = true;
    parameters.push_back(&context.model()[extent.parameter]);
  }
  for (const ModelParameter& parameter : context.model().all()) {
    if (!seen[IndexOf(parameter.id)]) parameters.push_back(&parameter);
  }
  return parameters;
}

std::vector<const ModelParameter*> TrainableOf(const ModelParameters& model) {
  std::vector<const ModelParameter*> parameters;
  for (const ModelParameter& parameter : model.all()) {
    if (parameter.trainable()) parameters.push_back(&parameter);
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
  TESSERA_ASSIGN_OR_RETURN(StateContext context,
                           SeatOf(model, options, *groups.shard));
  std::unique_ptr<ShardedState> state(new ShardedState(context, options));
  TESSERA_RETURN_IF_ERROR(state->JoinGroups(groups));
  state->prefetch_ = std::make_shared<ShardPrefetch>(
      ShardPrefetch::Options{.near_bytes = state->NearBytesOfTiers(false),
                             .reads_ahead = options.overlap,
                             .device = context.device});
  if (state->StepsOnHost()) {
    state->host_prefetch_ = std::make_shared<ShardPrefetch>(
        ShardPrefetch::Options{.near_bytes = state->NearBytesOfTiers(true),
                               .reads_ahead = options.overlap,
                               .device = HostOf(context.device)});
  }
  TESSERA_RETURN_IF_ERROR(state->CreateParameters());
  TESSERA_RETURN_IF_ERROR(state->CreateGradients());
  TESSERA_RETURN_IF_ERROR(state->CreateOptimizer());
  TESSERA_RETURN_IF_ERROR(state->CreateStatistics());
  return state;
}

// The members' destructors do not wait for work that uses several members.
ShardedState::~ShardedState() { queue().Synchronize().IgnoreError(); }

absl::Status ShardedState::JoinGroups(const ShardedStateGroups& groups) {
  TESSERA_ASSIGN_OR_RETURN(groups_.gather, Copy(*groups.shard, "gather"));
  TESSERA_RETURN_IF_ERROR(JoinSecondary(*groups.shard));
  TESSERA_ASSIGN_OR_RETURN(groups_.reduce, Copy(*groups.shard, "reduce"));
  TESSERA_ASSIGN_OR_RETURN(groups_.agree, Copy(groups.shard->host(), "agree"));
  if (groups.replicas != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(groups_.replicas,
                             Copy(*groups.replicas, "reduce"));
  }
  if (groups.model != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(groups_.model, Copy(groups.model->host(), "norm"));
  }
  return absl::OkStatus();
}

// The secondary groups consist of neighbouring ranks.
absl::Status ShardedState::JoinSecondary(collectives::Communicator& shard) {
  const int64_t size = options_.hpz_partition_size;
  if (size == 0) return absl::OkStatus();
  if (shard.size() % size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hpz_partition_size is ", size, "; it must divide the ",
                     shard.size(), " ranks of the shard group"));
  }
  const int64_t first = shard.rank().value() / size * size;
  std::vector<topology::Rank> members;
  for (int64_t r = 0; r < size; ++r) members.emplace_back(first + r);
  TESSERA_ASSIGN_OR_RETURN(
      groups_.secondary,
      shard.Subgroup(members, absl::StrCat(shard.name(), "/secondary")));
  return absl::OkStatus();
}

ShardStoreOptions ShardedState::StoreOptions(offload::Purpose purpose) const {
  return {.purpose = purpose,
          .device = context_.device,
          .prefetch = prefetch_,
          .marks_writes = purpose == offload::Purpose::kParameters};
}

// A single rank with its shards in memory also has all parameters whole.
bool ShardedState::IsWhole(const ModelParameter& parameter) const {
  const bool is_alone =
      context_.layout.ranks() == 1 && options_.parameter_tier == nullptr;
  return options_.stage < 3 || is_alone || parameter.elements == 0 ||
         context_.layout.IsSmall(parameter.id);
}

bool ShardedState::StepsOnHost() const {
  return options_.optimizer_tier != nullptr && !queue().is_immediate() &&
         options_.optimizer != OptimizerKind::kMuon &&
         options_.optimizer_on_host.value_or(true);
}

// The bytes of near memory for the slots that OptimizerShard and the stores
// keep in tiers.
int64_t ShardedState::NearBytesOfTiers(bool of_host) const {
  constexpr int64_t kValuesAhead = 16;
  std::vector<OffloadedBytes> by_slot;
  for (const Extent& extent : context_.layout.ExtentsOf(context_.rank)) {
    const ModelParameter& parameter = context_.model()[extent.parameter];
    OffloadedBytes& bytes = by_slot.emplace_back();
    if (!of_host && options_.parameter_tier != nullptr && !IsWhole(parameter)) {
      bytes.value = extent.slot * SizeInBytes(parameter.dtype());
    }
    if (!parameter.trainable()) continue;
    bytes.update = bytes.value;
    if (!of_host && options_.gradient_tier != nullptr) {
      bytes.update += extent.slot * SizeInBytes(GradientTypeOf(parameter));
    }
    if (options_.optimizer_tier != nullptr && of_host == StepsOnHost()) {
      bytes.update += OptimizerShard::BytesOfSlot(
          parameter, extent.slot, options_.moments,
          MomentCount(options_.optimizer, options_.sgd));
    }
  }
  return NearBytes(by_slot, options_.overlap ? 3 : 1,
                   options_.overlap ? kValuesAhead + 1 : 1);
}

DType ShardedState::GradientTypeOf(const ModelParameter& parameter) const {
  return SizeInBytes(parameter.dtype()) < 4 ? options_.gradient_dtype
                                            : parameter.dtype();
}

absl::Status ShardedState::CreateParameters() {
  std::vector<ParameterId> whole;
  for (const ModelParameter& parameter : context_.model().all()) {
    if (IsWhole(parameter)) whole.push_back(parameter.id);
  }
  TESSERA_ASSIGN_OR_RETURN(
      whole_,
      WholeParameters::Create(context_, std::move(whole), *groups_.gather));
  std::vector<ShardBlock> shards;
  std::vector<size_t> shard_of(static_cast<size_t>(context_.model().count()),
                               GatheredParameters::kNoShard);
  for (const ModelParameter* parameter : BySlot(context_)) {
    if (IsWhole(*parameter)) continue;
    const int64_t bytes = context_.OwnExtent(parameter->id).slot *
                          SizeInBytes(parameter->dtype());
    shard_of[IndexOf(parameter->id)] = shards.size();
    shards.push_back(
        {absl::StrCat(options_.key_prefix, "parameter/", parameter->id.value()),
         bytes, parameter->dtype(), options_.parameter_tier});
  }
  if (options_.stage == 3) {
    TESSERA_ASSIGN_OR_RETURN(
        value_shards_,
        ShardStore::Create(std::move(shards),
                           StoreOptions(offload::Purpose::kParameters)));
    gathered_ = std::make_unique<GatheredParameters>(
        context_, GatherOptions{.quantized = options_.quantized_weights},
        GatherGroups{.shard = groups_.gather.get(),
                     .secondary = groups_.secondary.get()},
        *value_shards_, shard_of);
  }
  own_values_ = std::make_unique<OwnValues>(context_, *whole_,
                                            value_shards_.get(), shard_of);
  return absl::OkStatus();
}

absl::Status ShardedState::CreateGradients() {
  std::vector<DType> dtypes;
  for (const ModelParameter& parameter : context_.model().all()) {
    dtypes.push_back(GradientTypeOf(parameter));
  }
  std::vector<ShardBlock> shards;
  std::vector<size_t> shard_of(dtypes.size());
  for (const ModelParameter* parameter : BySlot(context_)) {
    if (!parameter->trainable()) continue;
    const DType dtype = dtypes[IndexOf(parameter->id)];
    const int64_t bytes =
        context_.OwnExtent(parameter->id).slot * SizeInBytes(dtype);
    shard_of[IndexOf(parameter->id)] = shards.size();
    shards.push_back(
        {absl::StrCat(options_.key_prefix, "gradient/", parameter->id.value()),
         bytes, dtype, options_.gradient_tier});
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
          context_, dtypes,
          {.bucket_bytes = options_.bucket_bytes,
           .average = options_.average_gradients,
           .quantized = options_.quantized_gradients,
           .overlap = options_.overlap},
          {.shard = groups_.reduce.get(), .replicas = groups_.replicas.get()},
          gradient_shards_.get(), shard_of));
  return absl::OkStatus();
}

absl::Status ShardedState::CreateOptimizer() {
  const bool on_host = StepsOnHost();
  TESSERA_ASSIGN_OR_RETURN(
      optimizer_,
      OptimizerShard::Create(context_,
                             {.kind = options_.optimizer,
                              .adamw = options_.adamw,
                              .sgd = options_.sgd,
                              .muon_momentum = options_.muon_momentum,
                              .decayed = options_.decayed,
                              .moments = options_.moments,
                              .tier = options_.optimizer_tier,
                              .key_prefix = options_.key_prefix,
                              .overlap = options_.overlap,
                              .on_host = on_host,
                              .speculative_bytes = options_.speculative_bytes,
                              .prefetch = on_host ? host_prefetch_ : prefetch_,
                              .copies = prefetch_}));
  return absl::OkStatus();
}

namespace {

// The initial elements of a part of a parameter, in host memory: their values
// and the master weights, which are empty if the values are the master weights.
struct FirstElements {
  int64_t begin = 0;
  std::span<std::byte> values = {};
  std::span<std::byte> master = {};
};

DType MasterType(const ModelParameter& parameter) {
  return parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
}

constexpr int64_t kPart = 4096;  // Elements: its memory fits in a first cache.

// Fills `count` elements, at most kPart, from `at` on.
absl::Status FillPart(const ModelParameter& parameter, const FirstElements& to,
                      int64_t at, int64_t count, ShardedState::Filler fill) {
  const auto part = [&](std::span<std::byte> bytes, DType dtype) {
    const int64_t width = SizeInBytes(dtype);
    return bytes.subspan(static_cast<size_t>(at * width),
                         static_cast<size_t>(count * width));
  };
  const DType dtype = MasterType(parameter);
  alignas(64) std::byte scratch[kPart * sizeof(float)];
  const std::span<std::byte> values = part(to.values, parameter.dtype());
  const std::span<std::byte> exact =
      !to.master.empty() ? part(to.master, dtype)
      : parameter.dtype() == dtype
          ? values
          : std::span(scratch).first(static_cast<size_t>(count) *
                                     sizeof(float));
  TESSERA_ASSIGN_OR_RETURN(const TensorView first,
                           TensorView::Create(exact, dtype, {{count}}));
  TESSERA_RETURN_IF_ERROR(fill(parameter, to.begin + at, first));
  if (exact.data() == values.data()) return absl::OkStatus();
  return Convert(dtype, exact, parameter.dtype(), values);
}

absl::Status FillParts(const ModelParameter& parameter, const FirstElements& to,
                       ShardedState::Filler fill, ThreadPool& pool) {
  const int64_t count =
      static_cast<int64_t>(to.values.size()) / SizeInBytes(parameter.dtype());
  absl::Mutex mutex;
  absl::Status status;
  pool.Run((count + kPart - 1) / kPart, [&](int64_t part) {
    const int64_t at = part * kPart;
    const absl::Status own =
        FillPart(parameter, to, at, std::min(kPart, count - at), fill);
    if (own.ok()) return;
    absl::MutexLock lock(&mutex);
    status.Update(own);
  });
  return status;
}

}  // namespace

absl::Status ShardedState::Fill(Filler fill) {
  ThreadPool pool(options_.fill_threads);
  for (const ModelParameter& parameter : context_.model().all()) {
    TESSERA_RETURN_IF_ERROR(FillOne(parameter, fill, pool));
  }
  TESSERA_RETURN_IF_ERROR(optimizer_->Settle());
  return FinishRestoring(0);
}

absl::Status ShardedState::FillOne(const ModelParameter& parameter, Filler fill,
                                   ThreadPool& pool) {
  if (context_.OwnExtent(parameter.id).size() == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                           own_values_->Open(parameter.id));
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> master,
      optimizer_->Open(OptimizerPart::kMaster, parameter.id));
  if (context_.device.ops->computes()) {
    TESSERA_RETURN_IF_ERROR(FillMemory(parameter, own, master, fill, pool));
  }
  TESSERA_RETURN_IF_ERROR(own_values_->Close(parameter.id, /*changed=*/true));
  return optimizer_->Close(OptimizerPart::kMaster, parameter.id,
                           /*changed=*/true);
}

// The host writes memory that it can access directly. For other memory it
// alternates between two staging blocks: while one is copied, it fills the
// other.
absl::Status ShardedState::FillMemory(const ModelParameter& parameter,
                                      const offload::TypedSpan& own,
                                      std::span<std::byte> master, Filler fill,
                                      ThreadPool& pool) {
  constexpr int64_t kStaged = int64_t{1} << 17;
  const Extent extent = context_.OwnExtent(parameter.id);
  const int64_t width = SizeInBytes(own.dtype());
  const int64_t master_width = SizeInBytes(MasterType(parameter));
  const bool stages_values = !queue().is_immediate();
  const bool stages_master =
      !master.empty() && !optimizer_->queue().is_immediate();
  const int64_t step = stages_values || stages_master ? kStaged : extent.size();
  Event previous;
  for (int64_t at = 0; at < extent.size(); at += step) {
    const int64_t count = std::min(step, extent.size() - at);
    const std::span<std::byte> values(own.At(at),
                                      static_cast<size_t>(count * width));
    const std::span<std::byte> exact =
        master.empty()
            ? master
            : master.subspan(static_cast<size_t>(at * master_width),
                             static_cast<size_t>(count * master_width));
    FirstElements to = {extent.begin + at, values, exact};
    StagedUpload staged_values, staged_master;
    if (stages_values) {
      TESSERA_ASSIGN_OR_RETURN(staged_values, staging_.Stage(values.size()));
      to.values = staged_values.bytes();
    }
    if (stages_master) {
      TESSERA_ASSIGN_OR_RETURN(staged_master, staging_.Stage(exact.size()));
      to.master = staged_master.bytes();
    }
    TESSERA_RETURN_IF_ERROR(FillParts(parameter, to, fill, pool));
    if (stages_values) {
      TESSERA_RETURN_IF_ERROR(staging_.Send(staged_values, values));
    }
    if (stages_master) {
      TESSERA_RETURN_IF_ERROR(staging_.Send(staged_master, exact));
    }
    TESSERA_RETURN_IF_ERROR(previous.Wait());
    TESSERA_ASSIGN_OR_RETURN(previous, queue().Record());
  }
  return queue().Synchronize();
}

absl::Status ShardedState::FinishRestoring(int64_t steps) {
  steps_ = steps;
  if (value_shards_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(value_shards_->Settle());
  }
  TESSERA_RETURN_IF_ERROR(whole_->WaitAll());
  TESSERA_RETURN_IF_ERROR(whole_->StartPublish());
  return options_.overlap ? absl::OkStatus() : whole_->WaitAll();
}

absl::Status ShardedState::CheckIds(std::span<const ParameterId> window) const {
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  }
  return absl::OkStatus();
}

// An evaluation loads blocks when it uses them, outside of the steps whose
// order of uses the prefetcher follows.
absl::Status ShardedState::BeginTraffic() {
  return is_evaluating_ ? absl::OkStatus() : Tell(BeginStepOfTiers());
}

absl::Status ShardedState::BeginStepOfTiers() {
  TESSERA_RETURN_IF_ERROR(prefetch_->BeginStep());
  return host_prefetch_ == nullptr ? absl::OkStatus()
                                   : host_prefetch_->BeginStep();
}

absl::StatusOr<ShardTraffic> ShardedState::EndStepOfTiers() {
  TESSERA_ASSIGN_OR_RETURN(ShardTraffic traffic, prefetch_->EndStep());
  if (host_prefetch_ == nullptr) return traffic;
  TESSERA_ASSIGN_OR_RETURN(const ShardTraffic host, host_prefetch_->EndStep());
  const int64_t near_bytes = traffic.near_bytes + host.near_bytes;
  traffic.Add(host);
  traffic.near_bytes = near_bytes;
  return traffic;
}

absl::Status ShardedState::EndEvaluation() {
  is_evaluating_ = false;
  return gathered_ == nullptr ? absl::OkStatus() : Tell(gathered_->EndStep());
}

absl::Status ShardedState::AnnounceGather(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  TESSERA_RETURN_IF_ERROR(BeginTraffic());
  if (gathered_ != nullptr) gathered_->Announce(window);
  return absl::OkStatus();
}

absl::Status ShardedState::StartGather(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  TESSERA_RETURN_IF_ERROR(BeginTraffic());
  return gathered_ == nullptr ? absl::OkStatus()
                              : Tell(gathered_->Start(window));
}

absl::Status ShardedState::AwaitGather(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  for (ParameterId id : window) {
    if (whole_->Has(id)) TESSERA_RETURN_IF_ERROR(Tell(whole_->Wait(id)));
  }
  return gathered_ == nullptr ? absl::OkStatus()
                              : Tell(gathered_->Wait(window));
}

absl::Status ShardedState::Acquire(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(StartGather(window));
  return AwaitGather(window);
}

absl::StatusOr<TensorView> ShardedState::Value(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  if (!whole_->Has(id)) return gathered_->Value(id);
  TESSERA_RETURN_IF_ERROR(Tell(whole_->Wait(id)));
  return whole_->Value(id);
}

absl::Status ShardedState::Release(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  return gathered_ == nullptr ? absl::OkStatus()
                              : Tell(gathered_->Release(window));
}

absl::StatusOr<TensorView> ShardedState::Gradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(gradients_->CheckOpen(id));
  TESSERA_RETURN_IF_ERROR(Tell(optimizer_->ForgetDownload(id)));
  absl::StatusOr<TensorView> gradient = gradients_->Gradient(id);
  TESSERA_RETURN_IF_ERROR(Tell(gradient.status()));
  return gradient;
}

absl::Status ShardedState::ReduceGradients(
    std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(gradients_->CheckWindow(window));
  TESSERA_RETURN_IF_ERROR(Tell(BeginStepOfTiers()));
  return Tell(StartReducing(window));
}

absl::Status ShardedState::StartReducing(std::span<const ParameterId> window) {
  if (host_prefetch_ == nullptr) return gradients_->Start(window);
  reductions_.resize(static_cast<size_t>(context_.model().count()));
  previous_reductions_.resize(reductions_.size());
  for (ParameterId id : window) {
    ++reductions_[IndexOf(id)];
    TESSERA_RETURN_IF_ERROR(optimizer_->ForgetDownload(id));
  }
  // The reductions of the previous window have finished.
  TESSERA_RETURN_IF_ERROR(gradients_->Start(window));
  return DownloadFinal(
      std::exchange(last_reduced_, {window.begin(), window.end()}));
}

absl::Status ShardedState::DownloadFinal(std::span<const ParameterId> reduced) {
  if (gradients_->in_tier()) return absl::OkStatus();
  for (ParameterId id : reduced) {
    if (!context_.model()[id].trainable() ||
        reductions_[IndexOf(id)] != previous_reductions_[IndexOf(id)]) {
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan own,
                             gradients_->OpenOwn(id));
    TESSERA_RETURN_IF_ERROR(
        optimizer_->StartDownload(id, own, *gradients_, *own_values_));
    TESSERA_RETURN_IF_ERROR(gradients_->CloseOwn(id, /*changed=*/false));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ShardedState::OwnGradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  const absl::StatusOr<offload::TypedSpan> own = gradients_->OpenOwn(id);
  TESSERA_RETURN_IF_ERROR(Tell(own.status()));
  TESSERA_RETURN_IF_ERROR(Tell(optimizer_->ForgetDownload(id)));
  open_gradients_.push_back(id);
  const int64_t shape[] = {own->size()};
  return TensorView::Create(
      {own->data(), static_cast<size_t>(own->size_in_bytes())}, own->dtype(),
      shape, context_.device.memory->kind());
}

absl::Status ShardedState::CloseOwnGradients() {
  for (ParameterId id : std::exchange(open_gradients_, {})) {
    TESSERA_RETURN_IF_ERROR(gradients_->CloseOwn(id, /*changed=*/true));
  }
  return absl::OkStatus();
}

absl::Status ShardedState::Tell(absl::Status status) {
  // Either this call had no side effects, or the other ranks already have the
  // error.
  if (status.ok() || absl::IsFailedPrecondition(status)) return status;
  const std::string reason =
      absl::StrCat("rank ", groups_.agree->rank().value(), " of ",
                   groups_.agree->name(), " failed: ", status.message());
  if (gradients_ != nullptr) gradients_->Abort(reason);
  for (collectives::Communicator* group :
       {groups_.gather.get(), groups_.secondary.get(), groups_.reduce.get(),
        groups_.agree.get(), groups_.replicas.get(), groups_.model.get()}) {
    if (group != nullptr) group->Abort(reason);
  }
  return status;
}

absl::Status ShardedState::SetLearningRate(double learning_rate) {
  return optimizer_->SetLearningRate(learning_rate);
}

// All ranks exchange missing gradients before any rank waits for a bucket.
absl::Status ShardedState::CheckAllReduced() {
  if (options_.allow_unused) {
    TESSERA_RETURN_IF_ERROR(gradients_->ZeroMissing());
  }
  const auto missing = gradients_->FirstMissing();
  const int64_t mine = missing ? missing->value() : -1;
  std::vector<int64_t> all(static_cast<size_t>(groups_.agree->size()));
  TESSERA_RETURN_IF_ERROR(
      groups_.agree->AllGather(collectives::ConstBuffer(std::span(&mine, 1)),
                               collectives::Buffer(std::span(all))));
  const auto first =
      std::find_if(all.begin(), all.end(), [](int64_t id) { return id >= 0; });
  if (first == all.end()) return absl::OkStatus();
  const std::string reason = absl::StrCat(
      "rank ", first - all.begin(), " of ", groups_.agree->name(),
      " has not reduced the gradient of parameter ", *first, " \"",
      context_.model()[ParameterId(*first)].name(),
      "\" at the end of the step; every rank must reduce every gradient after "
      "it was last added to, or allow_unused be set");
  groups_.reduce->Abort(reason);
  return absl::FailedPreconditionError(reason);
}

std::vector<ElementRange> ShardedState::CountedOf(
    const ModelParameter& parameter) const {
  const Extent extent = context_.OwnExtent(parameter.id);
  const ElementRange whole = {0, parameter.elements};
  std::vector<ElementRange> counted;
  for (const ElementRange& range :
       options_.counted_in_norm.empty()
           ? std::span(&whole, 1)
           : std::span<const ElementRange>(
                 options_.counted_in_norm[IndexOf(parameter.id)])) {
    const int64_t begin = std::max(range.begin, extent.begin);
    const int64_t end = std::min(range.end, extent.end);
    if (begin < end) {
      counted.push_back({begin - extent.begin, end - extent.begin});
    }
  }
  return counted;
}

absl::Status ShardedState::CreateStatistics() {
  if (!context_.device.ops->computes()) return absl::OkStatus();
  size_t count = 0;
  for (const ModelParameter* parameter : TrainableOf(context_.model())) {
    count += CountedOf(*parameter).size();
  }
  TESSERA_ASSIGN_OR_RETURN(
      statistics_,
      Buffer::Allocate(context_.device.memory,
                       count * sizeof(offload::GradientStatistics)));
  return absl::OkStatus();
}

absl::Status ShardedState::StartMeasuring() {
  const std::vector<const ModelParameter*> parameters =
      TrainableOf(context_.model());
  std::span<std::byte> results = statistics_.bytes();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (options_.overlap && i + 1 < parameters.size()) {
      gradients_->AnnounceOwn(parameters[i + 1]->id);
    }
    const ParameterId id = parameters[i]->id;
    TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan own,
                             gradients_->OpenOwn(id));
    TESSERA_RETURN_IF_ERROR(
        optimizer_->StartDownload(id, own, *gradients_, *own_values_));
    for (const ElementRange& range : CountedOf(*parameters[i])) {
      const auto size =
          std::min(results.size(), sizeof(offload::GradientStatistics));
      TESSERA_RETURN_IF_ERROR(context_.device.ops->Run(op::Measure{
          {own.At(range.begin), own.dtype(), range.end - range.begin},
          results.first(size)}));
      results = results.subspan(size);
    }
    TESSERA_RETURN_IF_ERROR(gradients_->CloseOwn(id, /*changed=*/false));
  }
  return absl::OkStatus();
}

// The only wait of a step for the device, unless the host executes the step.
absl::StatusOr<offload::GradientStatistics> ShardedState::SumOfOwn(
    UpdateReport& report) {
  offload::GradientStatistics all;
  TESSERA_RETURN_IF_ERROR(StartMeasuring());
  TESSERA_ASSIGN_OR_RETURN(const Download download,
                           staging_.StartDownload(statistics_.bytes()));
  if (may_speculate_) {
    TESSERA_ASSIGN_OR_RETURN(
        report.stepped_early,
        optimizer_->Speculate(steps_ + 1, 1 / scaler_.scale(), download.event(),
                              *gradients_, *own_values_));
  }
  TESSERA_ASSIGN_OR_RETURN(std::span<const std::byte> results, download.Wait());
  if (results.empty()) return all;
  for (const ModelParameter* parameter : TrainableOf(context_.model())) {
    offload::GradientStatistics sum;
    const size_t count = CountedOf(*parameter).size();
    for (size_t i = 0; i < count; ++i) {
      offload::GradientStatistics one;
      std::memcpy(&one, results.data(), sizeof one);
      results = results.subspan(sizeof one);
      sum.Add(one);
    }
    all.Add(sum);
  }
  return all;
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureAll(
    UpdateReport& report) {
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics own,
                           SumOfOwn(report));
  report.non_finite = own.non_finite;
  double sums[] = {own.sum_of_squares, static_cast<double>(own.non_finite)};
  const collectives::Buffer buffer{std::span(sums)};
  // At stage 0 every rank has measured all elements.
  if (options_.stage > 0) {
    TESSERA_RETURN_IF_ERROR(
        groups_.agree->AllReduce(buffer, collectives::Reduction::Sum()));
  }
  if (groups_.model != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        groups_.model->AllReduce(buffer, collectives::Reduction::Sum()));
  }
  return offload::GradientStatistics{sums[0], static_cast<int64_t>(sums[1])};
}

absl::StatusOr<UpdateReport> ShardedState::Step(MatrixUpdates* matrices) {
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics all, Measure());
  return StepMeasured(all, matrices);
}

absl::StatusOr<offload::GradientStatistics> ShardedState::Measure() {
  absl::StatusOr<offload::GradientStatistics> statistics = MeasureAlone();
  TESSERA_RETURN_IF_ERROR(Tell(statistics.status()));
  return statistics;
}

absl::StatusOr<UpdateReport> ShardedState::StepMeasured(
    const offload::GradientStatistics& of_model, MatrixUpdates* matrices) {
  if (!measured_) {
    return absl::FailedPreconditionError(
        "StepMeasured of gradients that were not measured; call Measure first");
  }
  if ((matrices == nullptr) != (options_.optimizer != OptimizerKind::kMuon)) {
    return absl::FailedPreconditionError(
        matrices == nullptr
            ? "a step of Muon without MatrixUpdates; give the step one"
            : "a step with MatrixUpdates, which only Muon takes; give none");
  }
  absl::StatusOr<UpdateReport> report = StepAlone(of_model, matrices);
  TESSERA_RETURN_IF_ERROR(Tell(report.status()));
  return report;
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureAlone() {
  TESSERA_RETURN_IF_ERROR(BeginStepOfTiers());
  if (gathered_ != nullptr) TESSERA_RETURN_IF_ERROR(gathered_->EndStep());
  TESSERA_RETURN_IF_ERROR(CheckAllReduced());
  TESSERA_RETURN_IF_ERROR(CloseOwnGradients());
  TESSERA_RETURN_IF_ERROR(gradients_->Finish());
  UpdateReport report;
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics statistics,
                           MeasureAll(report));
  measured_ = report;
  return statistics;
}

absl::StatusOr<UpdateReport> ShardedState::StepAlone(
    const offload::GradientStatistics& statistics, MatrixUpdates* matrices) {
  UpdateReport report = *std::exchange(measured_, std::nullopt);
  report.loss_scale = scaler_.scale();
  report.skipped = !statistics.IsFinite();
  report.gradient_norm = statistics.Norm() / report.loss_scale;
  report.clip_factor =
      offload::ClipFactor(report.gradient_norm, options_.clip_norm);
  scaler_.Update(report.skipped);
  may_speculate_ = !report.skipped && report.clip_factor == 1;
  if (report.skipped) {
    TESSERA_RETURN_IF_ERROR(
        optimizer_->CancelSpeculation(*gradients_, *own_values_));
  } else {
    TESSERA_RETURN_IF_ERROR(optimizer_->Step(
        steps_ + 1,
        {.unscale = 1 / report.loss_scale, .clip_factor = report.clip_factor},
        *gradients_, *own_values_, matrices));
    TESSERA_RETURN_IF_ERROR(FinishRestoring(steps_ + 1));
  }
  TESSERA_RETURN_IF_ERROR(optimizer_->AwaitDownloads());
  last_reduced_.clear();
  previous_reductions_ = std::exchange(reductions_, {});
  TESSERA_RETURN_IF_ERROR(gradients_->Clear());
  TESSERA_ASSIGN_OR_RETURN(report.traffic, EndStepOfTiers());
  total_traffic_.Add(report.traffic);
  return report;
}

}  // namespace tessera::zero3
