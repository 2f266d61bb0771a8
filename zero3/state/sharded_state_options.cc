#include "zero3/state/sharded_state_options.h"

#include <string_view>
#include <utility>
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
  const bool is_offloaded = options.parameter_tier != nullptr ||
                            options.gradient_tier != nullptr ||
                            options.optimizer_tier != nullptr;
  if (options.far_tier != nullptr && !is_offloaded) {
    return absl::InvalidArgumentError(
        "a far tier without a near one: name parameter_tier, gradient_tier or "
        "optimizer_tier as well; the far tier may be the same");
  }
  if (options.gradient_tier != nullptr && options.stage < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradients in a tier at stage ", options.stage,
        ": below stage 2 every rank has all of them; use stage 2 or 3"));
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
  return absl::InvalidArgumentError(absl::StrCat(
      option, " \"", tier->name(), "\" rounds ", offload::PurposeName(purpose),
      " of ", DTypeName(dtype), ", from which training goes on; ", advice));
}

// State that has no other copy must come back from its tier bit for bit.
absl::Status CheckTiersAreLossless(const ShardedStateOptions& options,
                                   const ModelParameters& model) {
  std::vector<DType> of_optimizer = {DType::kF32};
  if (options.moments.type == offload::MomentType::kBF16) {
    of_optimizer.push_back(DType::kBF16);
  }
  for (const Parameter& parameter : model.all()) {
    if (!parameter.trainable()) continue;
    const DType dtype = parameter.dtype();
    if (dtype == DType::kF64) of_optimizer.push_back(dtype);
    if (SizeInBytes(dtype) < 4 || options.parameter_tier == nullptr) continue;
    constexpr std::string_view kAdvice =
        "use a lossless tier, or parameters of 16 bits, which have master "
        "weights apart";
    for (const auto& [name, tier] :
         {std::pair("parameter_tier", options.parameter_tier),
          std::pair("far_tier", options.far_tier)}) {
      TESSERA_RETURN_IF_ERROR(CheckLossless(
          name, tier, offload::Purpose::kParameters, dtype, kAdvice));
    }
  }
  if (options.optimizer_tier == nullptr) return absl::OkStatus();
  constexpr std::string_view kAdvice =
      "use a lossless tier, and for smaller moments the option moments, such "
      "as MomentFormat::Blockwise8()";
  for (const DType dtype : of_optimizer) {
    for (const auto& [name, tier] :
         {std::pair("optimizer_tier", options.optimizer_tier),
          std::pair("far_tier", options.far_tier)}) {
      TESSERA_RETURN_IF_ERROR(CheckLossless(
          name, tier, offload::Purpose::kOptimizer, dtype, kAdvice));
    }
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
  for (const Parameter& parameter : model.all()) {
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
  for (const Parameter& parameter : model.all()) {
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
  TESSERA_RETURN_IF_ERROR(AtLeast("tier_budget", options.tier_budget, 0));
  if (!(options.clip_norm >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("clip_norm is ", options.clip_norm,
                     "; it must be 0 (no clipping) or positive"));
  }
  TESSERA_RETURN_IF_ERROR(CheckNormRanges(options, model));
  TESSERA_RETURN_IF_ERROR(CheckLossScale(options.loss_scale));
  TESSERA_RETURN_IF_ERROR(offload::CheckMomentFormat(options.moments));
  TESSERA_RETURN_IF_ERROR(CheckTypes(options, model));
  TESSERA_RETURN_IF_ERROR(CheckTiers(options));
  return CheckTiersAreLossless(options, model);
}

}  // namespace tessera::zero3
