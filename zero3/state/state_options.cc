#include "zero3/state/state_options.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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

}  // namespace tessera::zero3
