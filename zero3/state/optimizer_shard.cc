#include "zero3/state/optimizer_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {

absl::Status CheckLossScale(const LossScaleOptions& options) {
  const auto is_positive = [](double x) { return std::isfinite(x) && x > 0; };
  if (!is_positive(options.initial) || !is_positive(options.least) ||
      !is_positive(options.largest) || options.least > options.initial ||
      options.initial > options.largest) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale: least ", options.least, ", initial ",
                     options.initial, ", largest ", options.largest,
                     "; they must be positive, finite and in this order"));
  }
  if (options.hysteresis < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale: a hysteresis of ", options.hysteresis,
                     " overflows; it must be at least 1"));
  }
  if (options.growth_interval < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("loss scale: a growth interval of ",
                     options.growth_interval, " steps; it must be at least 1"));
  }
  return absl::OkStatus();
}

void LossScaler::Update(bool overflowed) {
  if (!options_.dynamic) return;
  if (overflowed) {
    good_steps_ = 0;
    if (--patience_ > 0) return;
    patience_ = 1;
    scale_ = std::max(scale_ / 2, options_.least);
  } else if (++good_steps_ == options_.growth_interval) {
    good_steps_ = 0;
    patience_ = options_.hysteresis;
    scale_ = std::min(scale_ * 2, options_.largest);
  }
}

namespace {

bool HasMasterOf(const ModelParameter& parameter) {
  return SizeInBytes(parameter.dtype()) < 4;
}

offload::MomentFormat FormatFor(const ModelParameter& parameter,
                                const offload::MomentFormat& moments) {
  return parameter.dtype() == DType::kF64 ? offload::MomentFormat::F64()
                                          : moments;
}

int CountFor(const ModelParameter& parameter, int count) {
  return parameter.spec.orthogonalized ? std::min(count, 1) : count;
}

}  // namespace

std::string_view OptimizerPartName(OptimizerPart part) {
  switch (part) {
    case OptimizerPart::kMaster:
      return "master";
    case OptimizerPart::kFirstMoment:
      return "first_moment";
    case OptimizerPart::kSecondMoment:
      return "second_moment";
  }
  return "invalid";
}

absl::StatusOr<OptimizerShard::Optimizer> OptimizerShard::CreateOptimizer(
    const OptimizerShardOptions& options) {
  if (options.kind == OptimizerKind::kSgd) {
    TESSERA_ASSIGN_OR_RETURN(auto sgd, offload::Sgd::Create(options.sgd));
    return Optimizer(std::move(sgd));
  }
  TESSERA_ASSIGN_OR_RETURN(auto adamw, offload::AdamW::Create(options.adamw));
  return Optimizer(std::move(adamw));
}

// A momentum step with learning rate 1 on zero weights results in the negative
// direction; plain SGD then uses the update as the gradient. So Muon uses the
// kernels of SGD, on every device and for every type of moments and weights.
absl::StatusOr<OptimizerShard::MatrixSteps> OptimizerShard::CreateMatrixSteps(
    const OptimizerShardOptions& options) {
  MatrixSteps steps;
  if (options.kind != OptimizerKind::kMuon) return steps;
  const offload::AdamWOptions& adamw = options.adamw;
  offload::SgdOptions momentum = {.learning_rate = 1,
                                  .momentum = options.muon_momentum,
                                  .nesterov = true,
                                  .rounding = adamw.rounding,
                                  .seed = adamw.seed,
                                  .pool = adamw.pool,
                                  .threads = adamw.threads};
  TESSERA_ASSIGN_OR_RETURN(steps.momentum, offload::Sgd::Create(momentum),
                           Annotate(_, "Muon"));
  TESSERA_ASSIGN_OR_RETURN(
      steps.weights,
      offload::Sgd::Create({.learning_rate = adamw.learning_rate,
                            .weight_decay = adamw.weight_decay,
                            .decay = offload::WeightDecay::kDecoupled,
                            .pool = adamw.pool,
                            .threads = adamw.threads}),
      Annotate(_, "Muon"));
  return steps;
}

absl::StatusOr<std::unique_ptr<OptimizerShard>> OptimizerShard::Create(
    const StateContext& context, const OptimizerShardOptions& options) {
  TESSERA_RETURN_IF_ERROR(offload::CheckMomentFormat(options.moments));
  TESSERA_ASSIGN_OR_RETURN(Optimizer optimizer, CreateOptimizer(options));
  TESSERA_ASSIGN_OR_RETURN(MatrixSteps matrix_steps,
                           CreateMatrixSteps(options));
  std::unique_ptr<OptimizerShard> shard(new OptimizerShard(
      context, options, std::move(optimizer), std::move(matrix_steps)));
  for (const Extent& extent : context.layout.ExtentsOf(context.rank)) {
    if (!context.model()[extent.parameter].trainable() || extent.slot == 0) {
      continue;
    }
    shard->owned_.push_back(extent.parameter);
  }
  const auto matrices = std::stable_partition(
      shard->owned_.begin(), shard->owned_.end(),
      [&](ParameterId id) { return !context.model()[id].spec.orthogonalized; });
  shard->elementwise_ = static_cast<size_t>(matrices - shard->owned_.begin());
  shard->host_copies_.resize(static_cast<size_t>(context.model().count()));
  TESSERA_RETURN_IF_ERROR(shard->CreateStores());
  return shard;
}

OptimizerShard::~OptimizerShard() {
  if (options_.on_host) options_.copies->AwaitWork();
}

absl::Status OptimizerShard::SetLearningRate(double learning_rate) {
  if (matrix_steps_.weights != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        matrix_steps_.weights->SetLearningRate(learning_rate));
  }
  return std::visit(
      [&](const auto& optimizer) {
        return optimizer->SetLearningRate(learning_rate);
      },
      optimizer_);
}

int OptimizerShard::MomentCountOf(ParameterId id) const {
  return CountFor(context_.model()[id],
                  MomentCount(options_.kind, options_.sgd));
}

offload::MomentFormat OptimizerShard::FormatOf(ParameterId id) const {
  return FormatFor(context_.model()[id], options_.moments);
}

int64_t OptimizerShard::BytesOfSlot(const ModelParameter& parameter,
                                    int64_t slot,
                                    const offload::MomentFormat& moments,
                                    int count) {
  const int64_t master =
      HasMasterOf(parameter) ? slot * SizeInBytes(DType::kF32) : 0;
  const auto moment = offload::MomentBytes(FormatFor(parameter, moments), slot);
  return master + CountFor(parameter, count) * moment.value_or(0);
}

bool OptimizerShard::HasMaster(ParameterId id) const {
  return HasMasterOf(context_.model()[id]);
}

absl::StatusOr<int64_t> OptimizerShard::BytesOf(OptimizerPart part,
                                                ParameterId id) const {
  const int64_t slot = context_.OwnExtent(id).slot;
  if (!HasPart(part, id)) return 0;
  if (part == OptimizerPart::kMaster) {
    return HasMaster(id) ? slot * SizeInBytes(DType::kF32) : 0;
  }
  return offload::MomentBytes(FormatOf(id), slot);
}

// The type that codecs see.
DType OptimizerShard::DTypeOf(OptimizerPart part, ParameterId id) const {
  if (part == OptimizerPart::kMaster) return DType::kF32;
  switch (FormatOf(id).type) {
    case offload::MomentType::kF64:
      return DType::kF64;
    case offload::MomentType::kF32:
      return DType::kF32;
    case offload::MomentType::kBF16:
      return DType::kBF16;
    case offload::MomentType::kBlockwise8:
      return DType::kU8;
  }
  return DType::kU8;
}

bool OptimizerShard::HasPart(OptimizerPart part, ParameterId id) const {
  switch (part) {
    case OptimizerPart::kMaster:
      return true;
    case OptimizerPart::kFirstMoment:
      return MomentCountOf(id) >= 1;
    case OptimizerPart::kSecondMoment:
      return MomentCountOf(id) >= 2;
  }
  return false;
}

absl::Status OptimizerShard::CreateStores() {
  for (const OptimizerPart part :
       {OptimizerPart::kMaster, OptimizerPart::kFirstMoment,
        OptimizerPart::kSecondMoment}) {
    TESSERA_RETURN_IF_ERROR(CreateStore(part));
  }
  return absl::OkStatus();
}

absl::Status OptimizerShard::CreateStore(OptimizerPart part) {
  std::vector<size_t>& block_of = block_of_[static_cast<size_t>(part)];
  block_of.assign(static_cast<size_t>(context_.model().count()), kNone);
  std::vector<ShardBlock> blocks;
  for (const ParameterId id : owned_) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(part, id));
    if (bytes == 0) continue;
    block_of[static_cast<size_t>(id.value())] = blocks.size();
    blocks.push_back({absl::StrCat(options_.key_prefix, OptimizerPartName(part),
                                   "/", id.value()),
                      bytes, DTypeOf(part, id), options_.tier});
  }
  TESSERA_ASSIGN_OR_RETURN(
      stores_[static_cast<size_t>(part)],
      ShardStore::Create(std::move(blocks),
                         {.purpose = offload::Purpose::kOptimizer,
                          .device = options_.on_host ? HostOf(context_.device)
                                                     : context_.device,
                          .prefetch = options_.prefetch,
                          .writes_late = options_.on_host}));
  return absl::OkStatus();
}

absl::StatusOr<std::span<std::byte>> OptimizerShard::Open(OptimizerPart part,
                                                          ParameterId id) {
  const size_t block = BlockOf(part, id);
  if (block == kNone) return std::span<std::byte>();
  return StoreOf(part).Open(block);
}

absl::Status OptimizerShard::Close(OptimizerPart part, ParameterId id,
                                   bool changed) {
  const size_t block = BlockOf(part, id);
  return block == kNone ? absl::OkStatus()
                        : StoreOf(part).Close(block, changed);
}

absl::Status OptimizerShard::Settle() {
  absl::Status status;
  for (OptimizerPart part : kAllOptimizerParts) {
    status.Update(StoreOf(part).Settle());
  }
  return status;
}

void OptimizerShard::Announce(ParameterId id, GradientReducer& gradients,
                              OwnValues& values) {
  // A slot that is only padding is not opened.
  if (context_.OwnExtent(id).size() == 0) return;
  for (OptimizerPart part : kAllOptimizerParts) {
    const size_t block = BlockOf(part, id);
    if (block != kNone) StoreOf(part).Announce(block);
  }
  gradients.AnnounceOwn(id);
  values.Announce(id);
}

absl::Status OptimizerShard::Step(int64_t step, const offload::StepScale& scale,
                                  GradientReducer& gradients, OwnValues& values,
                                  MatrixUpdates* matrices) {
  for (size_t i = 0; i < elementwise_; ++i) {
    if (options_.overlap && i + 1 < elementwise_) {
      Announce(owned_[i + 1], gradients, values);
    }
    TESSERA_RETURN_IF_ERROR(StepOne(step, scale, owned_[i], gradients, values));
  }
  // A rank that owns no matrices may have to update matrices of other ranks.
  if (matrices != nullptr) {
    MatrixShards shards(*this, step, scale, gradients, values);
    TESSERA_RETURN_IF_ERROR(matrices->Run(shards));
  }
  return Settle();
}

const StateLayout& MatrixShards::layout() const {
  return shard_.context_.layout;
}

topology::Rank MatrixShards::rank() const { return shard_.context_.rank; }

absl::Status MatrixShards::WriteDirection(ParameterId id, int64_t begin,
                                          const offload::TypedSpan& direction) {
  return shard_.WriteDirection(step_, scale_, id, begin, direction, gradients_);
}

absl::Status MatrixShards::Apply(ParameterId id, int64_t begin,
                                 const offload::ConstTypedSpan& update) {
  return shard_.ApplyUpdate(step_, id, begin, update, values_);
}

absl::Status OptimizerShard::WriteDirection(int64_t step,
                                            const offload::StepScale& scale,
                                            ParameterId id, int64_t begin,
                                            const offload::TypedSpan& direction,
                                            GradientReducer& gradients) {
  const ModelParameter& parameter = context_.model()[id];
  const int64_t first = begin - context_.OwnExtent(id).begin;
  TESSERA_RETURN_IF_ERROR(ops().Zero(
      {direction.data(), static_cast<size_t>(direction.size_in_bytes())}));
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan gradient,
                           OpenGradient(id, gradients));
  TESSERA_ASSIGN_OR_RETURN(const offload::MomentSpan moment,
                           OpenMoment(OptimizerPart::kFirstMoment, id));
  offload::ParameterRange range = {.name = parameter.name(),
                                   .begin = begin,
                                   .whole = parameter.elements,
                                   .parameter = direction};
  range.gradient = offload::ConstTypedSpan(gradient.At(first), gradient.dtype(),
                                           direction.size());
  TESSERA_ASSIGN_OR_RETURN(range.first, moment.Piece(first, direction.size()));
  TESSERA_RETURN_IF_ERROR(
      ops().Step(*matrix_steps_.momentum, step, scale, range));
  TESSERA_RETURN_IF_ERROR(CloseGradient(id, gradients));
  return Close(OptimizerPart::kFirstMoment, id, /*changed=*/true);
}

absl::Status OptimizerShard::ApplyUpdate(int64_t step, ParameterId id,
                                         int64_t begin,
                                         const offload::ConstTypedSpan& update,
                                         OwnValues& values) {
  const int64_t first = begin - context_.OwnExtent(id).begin;
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           OpenWeights(id, "update a matrix", values));
  range.begin = begin;
  for (offload::TypedSpan* const weights : {&range.parameter, &range.copy}) {
    if (weights->empty()) continue;
    *weights = {weights->At(first), weights->dtype(), update.size()};
  }
  range.gradient = update;
  TESSERA_RETURN_IF_ERROR(ops().Step(*matrix_steps_.weights, step, {}, range));
  TESSERA_RETURN_IF_ERROR(Close(OptimizerPart::kMaster, id, /*changed=*/true));
  return CloseValue(id, values);
}

absl::StatusOr<offload::MomentSpan> OptimizerShard::OpenMoment(
    OptimizerPart part, ParameterId id) {
  if (!HasPart(part, id)) return offload::MomentSpan();
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, Open(part, id));
  const Extent extent = context_.OwnExtent(id);
  TESSERA_ASSIGN_OR_RETURN(
      const offload::MomentSpan moment,
      offload::MomentSpan::Over(FormatOf(id), extent.slot, bytes));
  return moment.Piece(0, extent.size());
}

absl::Status OptimizerShard::Download(const offload::ConstTypedSpan& from,
                                      Buffer& target) {
  const auto bytes = static_cast<size_t>(from.size_in_bytes());
  if (target.size() == 0) {
    TESSERA_ASSIGN_OR_RETURN(
        target,
        Buffer::Allocate(context_.queue().device().staging_memory(), bytes));
  }
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, options_.copies->Copies());
  TESSERA_ASSIGN_OR_RETURN(const Event written, context_.queue().Record());
  TESSERA_RETURN_IF_ERROR(copies->down->Wait(written));
  TESSERA_RETURN_IF_ERROR(
      copies->down->Copy({from.data(), bytes}, target.bytes()));
  TESSERA_ASSIGN_OR_RETURN(last_download_, copies->down->Record());
  return absl::OkStatus();
}

absl::Status OptimizerShard::Upload(const offload::TypedSpan& to,
                                    HostCopy& from) {
  TESSERA_ASSIGN_OR_RETURN(auto* const copies, options_.copies->Copies());
  TESSERA_ASSIGN_OR_RETURN(const Event used, context_.queue().Record());
  TESSERA_RETURN_IF_ERROR(copies->up->Wait(used));
  TESSERA_RETURN_IF_ERROR(
      copies->up->Copy(from.value.bytes(),
                       {to.data(), static_cast<size_t>(to.size_in_bytes())}));
  TESSERA_ASSIGN_OR_RETURN(from.uploaded, copies->up->Record());
  return absl::OkStatus();
}

absl::Status OptimizerShard::StartDownload(
    ParameterId id, const offload::ConstTypedSpan& gradient,
    const GradientReducer& gradients, OwnValues& values) {
  if (!options_.on_host || gradient.size() == 0) return absl::OkStatus();
  HostCopy& copy = HostCopyOf(id);
  if (std::exchange(copy.is_downloaded, true)) return absl::OkStatus();
  downloads_.push_back(id);
  if (!gradients.in_tier()) {
    TESSERA_RETURN_IF_ERROR(Download(gradient, copy.gradient));
    copy.gradient_span = offload::TypedSpan(copy.gradient.data(),
                                            gradient.dtype(), gradient.size());
    copy.downloaded = last_download_;
  }
  if (HasMaster(id) || values.InTier(id)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan value, values.Open(id));
  TESSERA_RETURN_IF_ERROR(Download(value, copy.value));
  copy.downloaded = last_download_;
  return values.Close(id, /*changed=*/false);
}

absl::Status OptimizerShard::ForgetDownload(ParameterId id) {
  HostCopy& copy = HostCopyOf(id);
  if (!std::exchange(copy.is_downloaded, false)) return absl::OkStatus();
  return context_.queue().Wait(copy.downloaded);
}

absl::Status OptimizerShard::AwaitDownloads() {
  downloads_.clear();
  for (HostCopy& copy : host_copies_) copy.is_downloaded = false;
  return context_.queue().Wait(std::exchange(last_download_, {}));
}

absl::StatusOr<offload::TypedSpan> OptimizerShard::OpenValue(
    ParameterId id, std::string_view why, OwnValues& values) {
  if (!options_.on_host) return values.Open(id);
  Device& device = context_.queue().device();
  if (values.InTier(id)) {
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan value,
                             values.OpenOnHost(id));
    TESSERA_RETURN_IF_ERROR(device.HostAccess(
        WritesTo(std::span(value.data(),
                           static_cast<size_t>(value.size_in_bytes()))),
        why));
    return value;
  }
  HostCopy& copy = HostCopyOf(id);
  const DType dtype = context_.model()[id].dtype();
  const int64_t size = context_.OwnExtent(id).size();
  if (copy.value.size() == 0) {
    TESSERA_ASSIGN_OR_RETURN(
        copy.value,
        Buffer::Allocate(device.staging_memory(),
                         static_cast<size_t>(size * SizeInBytes(dtype))));
  }
  // Usually a single wait: the gradient depends on the uploaded value, so its
  // download comes after that upload.
  TESSERA_RETURN_IF_ERROR(copy.downloaded.Wait());
  TESSERA_RETURN_IF_ERROR(copy.uploaded.Wait());
  TESSERA_RETURN_IF_ERROR(device.HostAccess(WritesTo(copy.value.bytes()), why));
  return offload::TypedSpan(copy.value.data(), dtype, size);
}

absl::Status OptimizerShard::CloseValue(ParameterId id, OwnValues& values) {
  if (!options_.on_host) return values.Close(id, /*changed=*/true);
  if (values.InTier(id)) return values.CloseOnHost(id, /*changed=*/true);
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own, values.Open(id));
  HostCopy& copy = HostCopyOf(id);
  TESSERA_RETURN_IF_ERROR(Upload(own, copy));
  return values.CloseWritten(id, copy.uploaded);
}

absl::StatusOr<offload::TypedSpan> OptimizerShard::OpenGradient(
    ParameterId id, GradientReducer& gradients) {
  if (!options_.on_host) return gradients.OpenOwn(id);
  if (gradients.in_tier()) return gradients.OpenOnHost(id);
  const HostCopy& copy = HostCopyOf(id);
  TESSERA_RETURN_IF_ERROR(copy.downloaded.Wait());
  TESSERA_RETURN_IF_ERROR(context_.queue().device().HostAccess(
      ReadsFrom(copy.gradient.bytes()), "step with a gradient"));
  return copy.gradient_span;
}

absl::Status OptimizerShard::CloseGradient(ParameterId id,
                                           GradientReducer& gradients) {
  if (!options_.on_host) return gradients.CloseOwn(id, /*changed=*/false);
  return gradients.in_tier() ? gradients.CloseOnHost(id) : absl::OkStatus();
}

absl::StatusOr<offload::ParameterRange> OptimizerShard::OpenWeights(
    ParameterId id, std::string_view why, OwnValues& values) {
  const Extent extent = context_.OwnExtent(id);
  offload::ParameterRange range;
  range.name = context_.model()[id].name();
  // The offset in the parameter, so that rounding does not depend on the
  // sharding.
  range.begin = extent.begin;
  range.whole = context_.model()[id].elements;
  range.decays = options_.decayed == DecayedParameters::kAll ||
                 context_.model()[id].spec.shape.size() >= 2;
  TESSERA_ASSIGN_OR_RETURN(range.parameter, OpenValue(id, why, values));
  if (HasMaster(id)) {
    range.copy = range.parameter;
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> master,
                             Open(OptimizerPart::kMaster, id));
    range.parameter =
        offload::TypedSpan(master.data(), DType::kF32, extent.size());
  }
  return range;
}

absl::StatusOr<offload::ParameterRange> OptimizerShard::OpenRange(
    ParameterId id, std::string_view why, GradientReducer& gradients,
    OwnValues& values) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           OpenWeights(id, why, values));
  TESSERA_ASSIGN_OR_RETURN(range.gradient, OpenGradient(id, gradients));
  TESSERA_ASSIGN_OR_RETURN(range.first,
                           OpenMoment(OptimizerPart::kFirstMoment, id));
  TESSERA_ASSIGN_OR_RETURN(range.second,
                           OpenMoment(OptimizerPart::kSecondMoment, id));
  return range;
}

absl::Status OptimizerShard::CloseRange(ParameterId id,
                                        GradientReducer& gradients) {
  TESSERA_RETURN_IF_ERROR(CloseGradient(id, gradients));
  for (OptimizerPart part : kAllOptimizerParts) {
    TESSERA_RETURN_IF_ERROR(Close(part, id, /*changed=*/true));
  }
  return absl::OkStatus();
}

absl::Status OptimizerShard::StepRange(int64_t step,
                                       const offload::StepScale& scale,
                                       const offload::ParameterRange& range) {
  return std::visit(
      [&](const auto& optimizer) {
        return ops().Step(*optimizer, step, scale, range);
      },
      optimizer_);
}

absl::Status OptimizerShard::StepOne(int64_t step,
                                     const offload::StepScale& scale,
                                     ParameterId id, GradientReducer& gradients,
                                     OwnValues& values) {
  if (context_.OwnExtent(id).size() == 0) return absl::OkStatus();
  if (HostCopyOf(id).is_stepped) {
    if (scale.clip_factor == 1) {
      HostCopyOf(id).is_stepped = false;
      return CloseValue(id, values);
    }
    TESSERA_RETURN_IF_ERROR(Undo(id, gradients, values));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const offload::ParameterRange range,
      OpenRange(id, "step a parameter", gradients, values));
  TESSERA_RETURN_IF_ERROR(StepRange(step, scale, range));
  TESSERA_RETURN_IF_ERROR(CloseRange(id, gradients));
  return CloseValue(id, values);
}

absl::StatusOr<Buffer*> OptimizerShard::UndoOf(
    ParameterId id, const offload::ParameterRange& range) {
  Buffer& undo = HostCopyOf(id).undo;
  if (undo.size() > 0) return &undo;
  const int64_t bytes = offload::UndoBytes(range, MomentCountOf(id));
  if (bytes > options_.speculative_bytes - undo_bytes_) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(
      undo, Buffer::Allocate(HostMemory(), static_cast<size_t>(bytes)));
  undo_bytes_ += bytes;
  return &undo;
}

bool OptimizerShard::MaySpeculate(ParameterId id,
                                  const GradientReducer& gradients,
                                  const OwnValues& values) const {
  const HostCopy& copy = host_copies_[static_cast<size_t>(id.value())];
  if (!copy.is_downloaded || copy.is_stepped || gradients.in_tier() ||
      values.InTier(id)) {
    return false;
  }
  for (const OptimizerPart part : kAllOptimizerParts) {
    const size_t block = BlockOf(part, id);
    if (block != kNone &&
        !stores_[static_cast<size_t>(part)]->IsInPlace(block)) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<int64_t> OptimizerShard::Speculate(int64_t step, double unscale,
                                                  const Event& known,
                                                  GradientReducer& gradients,
                                                  OwnValues& values) {
  int64_t stepped = 0;
  if (!options_.on_host || options_.speculative_bytes == 0) return stepped;
  for (const ParameterId id : downloads_) {
    if (!MaySpeculate(id, gradients, values)) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool is_known, known.Test());
    if (is_known) break;
    TESSERA_ASSIGN_OR_RETURN(
        offload::ParameterRange range,
        OpenRange(id, "step a parameter early", gradients, values));
    TESSERA_ASSIGN_OR_RETURN(Buffer* const undo, UndoOf(id, range));
    if (undo != nullptr) {
      range.undo = undo->bytes();
      TESSERA_RETURN_IF_ERROR(
          StepRange(step, {.unscale = unscale, .clip_factor = 1}, range));
      HostCopyOf(id).is_stepped = true;
      ++stepped;
    }
    TESSERA_RETURN_IF_ERROR(CloseRange(id, gradients));
  }
  return stepped;
}

absl::Status OptimizerShard::Undo(ParameterId id, GradientReducer& gradients,
                                  OwnValues& values) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           OpenRange(id, "undo a step", gradients, values));
  HostCopy& copy = HostCopyOf(id);
  range.undo = copy.undo.bytes();
  TESSERA_RETURN_IF_ERROR(std::visit(
      [&](const auto& optimizer) {
        return optimizer->Undo({&range, 1});
      },
      optimizer_));
  copy.is_stepped = false;
  return CloseRange(id, gradients);
}

absl::Status OptimizerShard::CancelSpeculation(GradientReducer& gradients,
                                               OwnValues& values) {
  for (const ParameterId id : owned_) {
    if (!HostCopyOf(id).is_stepped) continue;
    TESSERA_RETURN_IF_ERROR(Undo(id, gradients, values));
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
