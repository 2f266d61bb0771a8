#include "zero3/state/state_options.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tessera::zero3 {
namespace {

// Checks options; keeps the first error.
class OptionCheck {
 public:
  OptionCheck(const ShardedStateOptions& options, const ModelParameters& model)
      : options_(options), model_(model) {}

  absl::Status Run() {
    CheckSizes();
    CheckNormRanges();
    status_.Update(CheckLossScale(options_.loss_scale));
    status_.Update(offload::CheckMomentFormat(options_.moments));
    CheckTypes();
    CheckMatrixUpdates();
    CheckZeroPlusPlus();
    CheckTiers();
    CheckTiersAreLossless();
    CheckAdafactor();
    CheckShampoo();
    return status_;
  }

 private:
  template <typename... Parts>
  void Require(bool holds, const Parts&... message) {
    if (holds || !status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(message...));
  }
  void RequireAtLeast(std::string_view name, int64_t value, int64_t least) {
    Require(value >= least, name, " is ", value, "; it must be at least ",
            least);
  }
  void RequireLossless(std::string_view option, const offload::MemoryTier& tier,
                       offload::Purpose purpose, DType dtype,
                       std::string_view advice) {
    Require(tier.IsLossless(purpose, dtype), option, " \"", tier.name(),
            "\" rounds ", offload::PurposeName(purpose), " of ",
            DTypeName(dtype), ", which the next step needs exactly; ", advice);
  }

  void CheckSizes();
  void CheckNormRanges();
  void CheckTypes();
  void CheckMatrixUpdates();
  void CheckAdafactor();
  void CheckShampoo();
  void CheckZeroPlusPlus();
  void CheckTiers();
  // State without another copy requires a lossless tier.
  void CheckFrozenCodec();
  void CheckTiersAreLossless();

  const ShardedStateOptions& options_;
  const ModelParameters& model_;
  absl::Status status_;
};

void OptionCheck::CheckSizes() {
  Require(0 <= options_.stage && options_.stage <= 3, "stage ", options_.stage,
          "; there are stages 0 to 3");
  RequireAtLeast("alignment", options_.alignment, 1);
  RequireAtLeast("persistence_threshold", options_.persistence_threshold, 0);
  RequireAtLeast("bucket_bytes", options_.bucket_bytes, 1);
  RequireAtLeast("prefetch", options_.prefetch, 0);
  Require(options_.clip_norm >= 0, "clip_norm is ", options_.clip_norm,
          "; it must be 0 (no clipping) or positive");
}

void OptionCheck::CheckNormRanges() {
  const auto& counted = options_.counted_in_norm;
  if (counted.empty()) return;
  if (static_cast<int64_t>(counted.size()) != model_.count()) {
    return Require(false, "counted_in_norm has ", counted.size(),
                   " entries; the model has ", model_.count(), " parameters");
  }
  for (const ModelParameter& parameter : model_.all()) {
    for (const auto& [begin, end] : counted[IndexOf(parameter.id)]) {
      Require(0 <= begin && begin <= end && end <= parameter.elements,
              "counted_in_norm has elements [", begin, ", ", end,
              ") of parameter \"", parameter.name(), "\", which has ",
              parameter.elements);
    }
  }
}

void OptionCheck::CheckTypes() {
  const DType gradient = options_.gradient_dtype;
  Require(gradient == DType::kF32 || gradient == DType::kBF16 ||
              gradient == DType::kF16,
          "gradients of ", DTypeName(gradient),
          "; they may be of f32, bf16 and f16");
  for (const ModelParameter& parameter : model_.all()) {
    const DType dtype = parameter.dtype();
    Require(!parameter.trainable() || dtype == DType::kF64 ||
                dtype == DType::kF32 || dtype == DType::kBF16 ||
                dtype == DType::kF16,
            "parameter \"", parameter.name(), "\" is of ", DTypeName(dtype),
            "; f64, f32, bf16 and f16 are trained");
  }
}

void OptionCheck::CheckMatrixUpdates() {
  const bool is_muon = options_.optimizer == OptimizerKind::kMuon;
  for (const ModelParameter& parameter : model_.all()) {
    if (!parameter.spec.orthogonalized) continue;
    Require(is_muon, "parameter \"", parameter.name(),
            "\" is orthogonalized, which is the work of Muon; use "
            "OptimizerKind::kMuon");
    Require(parameter.trainable() && parameter.spec.shape.size() == 2,
            "parameter \"", parameter.name(), "\" of ",
            parameter.spec.shape.size(), " dimensions",
            parameter.trainable() ? "" : ", not trained,",
            " cannot be orthogonalized; only trained matrices can");
  }
  if (!options_.UpdatesMatrices()) return;
  const bool is_adafactor = options_.optimizer == OptimizerKind::kAdafactor;
  Require(is_adafactor || options_.moments.block == 0, "moments of ",
          options_.moments.ToString(), " with ", is_muon ? "Muon" : "Shampoo",
          ", whose matrices begin anywhere in a block; use f32 or bf16");
  Require(!options_.optimizer_on_host.value_or(false) &&
              options_.speculative_bytes <= 0,
          options_.speculative_bytes > 0 ? "speculative_bytes"
                                         : "optimizer_on_host",
          is_adafactor ? " with Adafactor, which the device steps; leave it out"
          : is_muon
              ? " with Muon, whose matrices the device updates; leave it out"
              : " with Shampoo, whose matrices the device updates; leave it "
                "out");
}

void OptionCheck::CheckAdafactor() {
  if (options_.optimizer != OptimizerKind::kAdafactor) return;
  const AdafactorNumbers& numbers = options_.adafactor;
  Require(numbers.beta2_decay <= 0, "Adafactor: beta2_decay is ",
          numbers.beta2_decay, "; it must be 0 or negative");
  Require(numbers.epsilon2 >= 0, "Adafactor: epsilon2 is ", numbers.epsilon2,
          "; it must be at least 0");
  Require(numbers.threshold >= 1, "Adafactor: threshold is ", numbers.threshold,
          "; it must be at least 1");
  if (options_.parameter_tier == nullptr) return;
  RequireLossless("parameter_tier", *options_.parameter_tier,
                  offload::Purpose::kParameters, DType::kF32,
                  "use a lossless tier, as Adafactor's moments are there");
}

void OptionCheck::CheckShampoo() {
  if (options_.optimizer != OptimizerKind::kShampoo) return;
  const ShampooNumbers& numbers = options_.shampoo;
  RequireAtLeast("Shampoo: block", numbers.block, 1);
  RequireAtLeast("Shampoo: every", numbers.every, 1);
  Require(1e-8 <= numbers.epsilon && numbers.epsilon <= 1, "Shampoo: epsilon ",
          "is ", numbers.epsilon, "; it must be from 1e-8 to 1");
  const std::vector<bool>& marked = options_.preconditioned;
  if (static_cast<int64_t>(marked.size()) != model_.count()) {
    return Require(false, "preconditioned has ", marked.size(),
                   " entries; the model has ", model_.count(), " parameters");
  }
  for (const ModelParameter& parameter : model_.all()) {
    Require(!marked[IndexOf(parameter.id)] ||
                (parameter.trainable() && parameter.spec.shape.size() == 2),
            "parameter \"", parameter.name(),
            "\" is preconditioned, which only trained matrices can be");
  }
}

void OptionCheck::CheckZeroPlusPlus() {
  RequireAtLeast("hpz_partition_size", options_.hpz_partition_size, 0);
  Require(!options_.quantized_gradients || options_.stage >= 1,
          "quantized_gradients at stage 0: every rank sums all gradients; use "
          "stage 1, 2 or 3");
  Require(
      (!options_.quantized_weights && options_.hpz_partition_size == 0) ||
          options_.stage == 3,
      options_.quantized_weights ? "quantized_weights" : "hpz_partition_size",
      " at stage ", options_.stage,
      ": below stage 3 no weights are gathered; use stage 3");
}

void OptionCheck::CheckTiers() {
  Require(options_.parameter_tier == nullptr || options_.stage == 3,
          "parameters in a tier at stage ", options_.stage,
          ": below stage 3 every rank computes with all of them; use stage 3");
  CheckFrozenCodec();
  Require(options_.gradient_tier == nullptr || options_.stage >= 2,
          "gradients in a tier at stage ", options_.stage,
          ": below stage 2 every rank has all of them; use stage 2 or 3");
  const bool has_tier = options_.optimizer_tier != nullptr;
  Require(has_tier || !options_.optimizer_on_host.value_or(false),
          "optimizer_on_host without optimizer_tier: the optimizer's state is "
          "in memory of the device; give it a tier, such as a HostTier");
  RequireAtLeast("speculative_bytes", options_.speculative_bytes, 0);
  Require(has_tier || options_.speculative_bytes == 0,
          "speculative_bytes without optimizer_tier: the device steps the "
          "optimizer's state when the norm is known; give it a tier, such as a "
          "HostTier");
}

void OptionCheck::CheckFrozenCodec() {
  const offload::Codec* const codec = options_.frozen_codec;
  if (codec == nullptr) return;
  Require(codec->name() == "nf4" || codec->name() == "nf4_double",
          "frozen_codec is ", codec->name(), "; give nf4 or nf4_double");
  Require(options_.stage == 3, "encoded frozen parameters at stage ",
          options_.stage,
          ": below stage 3 every rank computes with all of them; use stage 3");
  const std::vector<bool>& marked = options_.is_encoded;
  if (static_cast<int64_t>(marked.size()) != model_.count()) {
    return Require(false, "is_encoded has ", marked.size(),
                   " entries; the model has ", model_.count(), " parameters");
  }
  for (const ModelParameter& parameter : model_.all()) {
    Require(!marked[IndexOf(parameter.id)] || !parameter.trainable(),
            "parameter \"", parameter.name(),
            "\" is trained, and frozen_codec is for frozen ones");
  }
}

void OptionCheck::CheckTiersAreLossless() {
  std::vector<DType> of_optimizer = {DType::kF32};
  if (options_.moments.type == offload::MomentType::kBF16) {
    of_optimizer.push_back(DType::kBF16);
  }
  for (const ModelParameter& parameter : model_.all()) {
    if (!parameter.trainable()) continue;
    const DType dtype = parameter.dtype();
    if (dtype == DType::kF64) of_optimizer.push_back(dtype);
    if (SizeInBytes(dtype) < 4 || options_.parameter_tier == nullptr) continue;
    RequireLossless("parameter_tier", *options_.parameter_tier,
                    offload::Purpose::kParameters, dtype,
                    "use a lossless tier, or parameters of 16 bits, which have "
                    "master weights apart");
  }
  if (options_.optimizer_tier == nullptr) return;
  for (const DType dtype : of_optimizer) {
    RequireLossless("optimizer_tier", *options_.optimizer_tier,
                    offload::Purpose::kOptimizer, dtype,
                    "use a lossless tier, and for smaller moments the option "
                    "moments, such as MomentFormat::Blockwise8()");
  }
}

}  // namespace

absl::Status CheckOptions(const ShardedStateOptions& options,
                          const ModelParameters& model) {
  return OptionCheck(options, model).Run();
}

}  // namespace tessera::zero3
