#include "tools/train/checkpoint/run_identity.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/model_files/hugging_face_config.h"

namespace tessera::train {
namespace {

using zero3::CheckpointMetadata;

absl::StatusOr<std::string_view> Get(const CheckpointMetadata& metadata,
                                     std::string_view key) {
  const auto found = metadata.find(std::string(key));
  if (found != metadata.end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("not a checkpoint of a training run: it has no ",
                   Quoted(key), " in its metadata"));
}

// "" if the key is missing.
std::string GetOptional(const CheckpointMetadata& metadata,
                        std::string_view key) {
  const auto found = metadata.find(std::string(key));
  return found == metadata.end() ? "" : found->second;
}

absl::StatusOr<uint64_t> GetNumber(const CheckpointMetadata& metadata,
                                   std::string_view key, uint64_t most) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view text, Get(metadata, key));
  uint64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value <= most) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("the metadata of the checkpoint has ", Quoted(text), " as ",
                   Quoted(key), "; it must be a number from 0 to ", most));
}

absl::StatusOr<int64_t> GetCount(const CheckpointMetadata& metadata,
                                 std::string_view key) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  TESSERA_ASSIGN_OR_RETURN(const uint64_t value,
                           GetNumber(metadata, key, kMost));
  return static_cast<int64_t>(value);
}

// Collects the fields that differ.
class Differences {
 public:
  template <typename T>
  void Compare(std::string_view name, const T& saved, const T& now) {
    if (saved == now) return;
    texts_.push_back(
        absl::StrCat(name, " is ", saved, " there and ", now, " here"));
  }
  bool empty() const { return texts_.empty(); }
  std::string ToString() const { return absl::StrJoin(texts_, ", "); }

 private:
  std::vector<std::string> texts_;
};

std::string TextOfScaling(const tensor_parallel::RotaryFrequencies& rotary) {
  using tensor_parallel::RotaryScaling;
  std::string text;
  switch (rotary.scaling) {
    case RotaryScaling::kNone:
      text = "none";
      break;
    case RotaryScaling::kLinear:
      text = absl::StrCat("linear by ", rotary.factor);
      break;
    case RotaryScaling::kDynamic:
      text = absl::StrCat("dynamic by ", rotary.factor, " after ",
                          rotary.original_positions, " positions");
      break;
    case RotaryScaling::kLongRope:
      text =
          absl::StrCat("longrope by ", absl::StrJoin(rotary.short_factors, " "),
                       ", ", absl::StrJoin(rotary.long_factors, " "), " after ",
                       rotary.original_positions, " positions");
      break;
    case RotaryScaling::kYarn:
    case RotaryScaling::kLlama3:
      text = absl::StrCat(
          rotary.scaling == RotaryScaling::kYarn ? "yarn by " : "llama3 by ",
          rotary.factor, ", ", rotary.low_turns, " to ", rotary.high_turns,
          " turns in ", rotary.original_positions, " positions",
          rotary.truncate ? "" : ", not truncated");
  }
  if (rotary.partial != 1) absl::StrAppend(&text, " of ", rotary.partial);
  if (rotary.attention_factor != 1) {
    absl::StrAppend(&text, " times ", rotary.attention_factor);
  }
  return text;
}

std::string TextOfMixture(const model_files::ModelConfig& model) {
  const model_files::MixtureConfig& mixture = model.mixture;
  const model_files::MixtureTraits& traits = model.traits().mixture;
  if (mixture.experts == 0) return "none";
  return absl::StrCat(
      mixture.experts, " experts of ", mixture.intermediate, ", ",
      mixture.per_token, " a token, ", mixture.shared_intermediate,
      " shared, from layer ", mixture.dense_layers,
      traits.sigmoid ? ", sigmoid" : ", softmax",
      mixture.normalise ? ", normalised to " : ", times ", mixture.scale,
      ", balance ", mixture.balance, traits.like_gpt_oss ? ", biases" : "",
      mixture.groups == 1 ? std::string()
                          : absl::StrCat(", ", mixture.groups_per_token, " of ",
                                         mixture.groups, " groups"));
}

std::string TextOfLatent(const model_files::LatentConfig& latent) {
  if (latent.kv_rank == 0) return "none";
  return absl::StrCat("ranks ", latent.query_rank, " and ", latent.kv_rank,
                      ", heads of ", latent.nope, " + ", latent.rope, " and ",
                      latent.value, latent.interleaved ? "" : ", halves",
                      ", mscale ", latent.score_mscale);
}

Differences OfModels(const model_files::ModelConfig& saved,
                     const model_files::ModelConfig& now) {
  const model_files::ArchitectureTraits& there = saved.traits();
  const model_files::ArchitectureTraits& here = now.traits();
  Differences found;
  found.Compare("vocabulary", saved.vocabulary, now.vocabulary);
  found.Compare("hidden", saved.hidden, now.hidden);
  found.Compare("intermediate", saved.intermediate, now.intermediate);
  found.Compare("layers", saved.layers, now.layers);
  found.Compare("heads", saved.heads, now.heads);
  found.Compare("kv_heads", saved.kv_heads, now.kv_heads);
  found.Compare("head_size", saved.head_size, now.head_size);
  found.Compare("rope_theta", saved.rotary.base, now.rotary.base);
  found.Compare("rope_scaling", TextOfScaling(saved.rotary),
                TextOfScaling(now.rotary));
  found.Compare("norm_epsilon", saved.norm_epsilon, now.norm_epsilon);
  found.Compare("tied_embeddings", int{saved.tied_embeddings},
                int{now.tied_embeddings});
  found.Compare("qkv_bias", int{saved.qkv_bias}, int{now.qkv_bias});
  found.Compare("output_bias", int{saved.output_bias}, int{now.output_bias});
  found.Compare("qk_norm", int{there.qk_norm}, int{here.qk_norm});
  found.Compare("GeGLU", there.glu == tensor_parallel::GluKind::kGeGlu,
                here.glu == tensor_parallel::GluKind::kGeGlu);
  found.Compare("clamped GLU",
                there.glu == tensor_parallel::GluKind::kClampedGlu,
                here.glu == tensor_parallel::GluKind::kClampedGlu);
  found.Compare("attention sinks", int{there.sinks}, int{here.sinks});
  found.Compare("scaled_embedding", int{there.scaled_embedding},
                int{here.scaled_embedding});
  found.Compare("window", saved.window, now.window);
  found.Compare("window_begin", saved.window_begin, now.window_begin);
  found.Compare("full_layers", absl::StrJoin(saved.full_layers, " "),
                absl::StrJoin(now.full_layers, " "));
  found.Compare("no_rope_layers", absl::StrJoin(saved.no_rope_layers, " "),
                absl::StrJoin(now.no_rope_layers, " "));
  const auto local = [](const model_files::ModelConfig& model) {
    return model.local_rotary.has_value() ? model.local_rotary->base : 0;
  };
  found.Compare("rope_local_base_freq", local(saved), local(now));
  found.Compare("input_norms", int{there.input_norms}, int{here.input_norms});
  found.Compare("output_norms", int{there.output_norms},
                int{here.output_norms});
  found.Compare("shared_qk_norm", int{there.shared_qk_norm},
                int{here.shared_qk_norm});
  found.Compare("query_pre_attn_scalar", saved.score_scalar, now.score_scalar);
  found.Compare("attn_logit_softcapping", saved.attention_cap,
                now.attention_cap);
  found.Compare("final_logit_softcapping", saved.final_cap, now.final_cap);
  found.Compare("latent attention", TextOfLatent(saved.latent),
                TextOfLatent(now.latent));
  found.Compare("mixture of experts", TextOfMixture(saved), TextOfMixture(now));
  return found;
}

Differences OfData(const RunIdentity& saved, const RunIdentity& now) {
  Differences found;
  found.Compare("seed", saved.seed, now.seed);
  found.Compare("batch", saved.batch, now.batch);
  found.Compare("batch_warmup", Quoted(saved.batch_warmup),
                Quoted(now.batch_warmup));
  found.Compare("length", saved.length, now.length);
  found.Compare("vocabulary of the tokenizer", saved.vocabulary,
                now.vocabulary);
  found.Compare("fingerprint of the data", saved.corpus, now.corpus);
  found.Compare("number of validation samples", saved.validation_samples,
                now.validation_samples);
  found.Compare("number of test samples", saved.test_samples, now.test_samples);
  return found;
}

constexpr int64_t kMostLoraRank = 1 << 16;

absl::StatusOr<LoraIdentity> LoraFrom(const CheckpointMetadata& metadata) {
  LoraIdentity lora;
  if (!metadata.contains("lora_rank")) return lora;
  TESSERA_ASSIGN_OR_RETURN(
      const uint64_t rank,
      GetNumber(metadata, "lora_rank", uint64_t{kMostLoraRank}));
  lora.rank = static_cast<int64_t>(rank);
  TESSERA_ASSIGN_OR_RETURN(const std::string_view alpha,
                           Get(metadata, "lora_alpha"));
  TESSERA_ASSIGN_OR_RETURN(const std::string_view targets,
                           Get(metadata, "lora_targets"));
  if (!absl::SimpleAtod(alpha, &lora.alpha) || !std::isfinite(lora.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the metadata of the checkpoint has ", Quoted(alpha),
                     " as \"lora_alpha\"; it must be a number"));
  }
  lora.targets = targets;
  if (targets == "attention" || targets == "mlp" || targets == "all") {
    return lora;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the metadata of the checkpoint has ", Quoted(targets),
                   " as \"lora_targets\"; it must be \"attention\", \"mlp\" or "
                   "\"all\""));
}

}  // namespace

std::string LoraIdentity::ToString() const {
  if (rank == 0) return "none";
  return absl::StrCat("rank ", rank, ", alpha ", alpha, ", ", targets);
}

absl::Status AddTo(const RunIdentity& identity, CheckpointMetadata& metadata) {
  TESSERA_ASSIGN_OR_RETURN(
      metadata["model"],
      model_files::FormatHuggingFaceConfig({.model = identity.model}));
  metadata["seed"] = absl::StrCat(identity.seed);
  metadata["batch"] = absl::StrCat(identity.batch);
  if (!identity.batch_warmup.empty()) {
    metadata["batch_warmup"] = identity.batch_warmup;
  }
  metadata["length"] = absl::StrCat(identity.length);
  metadata["corpus"] = absl::StrCat(identity.corpus);
  metadata["vocabulary"] = absl::StrCat(identity.vocabulary);
  metadata["decay"] = identity.decay;
  metadata["optimizer"] = identity.optimizer;
  if (identity.shampoo_block > 0) {
    metadata["shampoo_block"] = absl::StrCat(identity.shampoo_block);
  }
  const model_files::ModelSource& source = identity.source;
  if (!source.config.empty()) metadata["source_config"] = source.config;
  if (!source.generation_config.empty()) {
    metadata["source_generation_config"] = source.generation_config;
  }
  if (identity.lora.rank > 0) {
    metadata["lora_rank"] = absl::StrCat(identity.lora.rank);
    metadata["lora_alpha"] = absl::StrFormat("%.17g", identity.lora.alpha);
    metadata["lora_targets"] = identity.lora.targets;
  }
  if (identity.validation_samples > 0) {
    metadata["validation_samples"] = absl::StrCat(identity.validation_samples);
  }
  if (identity.test_samples > 0) {
    metadata["test_samples"] = absl::StrCat(identity.test_samples);
  }
  return absl::OkStatus();
}

absl::StatusOr<RunIdentity> IdentityFrom(const CheckpointMetadata& metadata) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  TESSERA_ASSIGN_OR_RETURN(const std::string_view json, Get(metadata, "model"));
  RunIdentity identity;
  const auto config = model_files::ParseHuggingFaceConfig(json);
  if (!config.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the metadata of the checkpoint, \"model\": ",
                     config.status().message()));
  }
  identity.model = config->model;
  TESSERA_ASSIGN_OR_RETURN(identity.seed, GetNumber(metadata, "seed", kMost));
  TESSERA_ASSIGN_OR_RETURN(identity.batch, GetCount(metadata, "batch"));
  identity.batch_warmup = GetOptional(metadata, "batch_warmup");
  TESSERA_ASSIGN_OR_RETURN(identity.length, GetCount(metadata, "length"));
  TESSERA_ASSIGN_OR_RETURN(identity.corpus,
                           GetNumber(metadata, "corpus", kMost));
  TESSERA_ASSIGN_OR_RETURN(identity.vocabulary,
                           GetCount(metadata, "vocabulary"));
  if (metadata.contains("validation_samples")) {
    TESSERA_ASSIGN_OR_RETURN(identity.validation_samples,
                             GetCount(metadata, "validation_samples"));
  }
  if (metadata.contains("test_samples")) {
    TESSERA_ASSIGN_OR_RETURN(identity.test_samples,
                             GetCount(metadata, "test_samples"));
  }
  TESSERA_ASSIGN_OR_RETURN(identity.lora, LoraFrom(metadata));
  identity.source = {
      .config = GetOptional(metadata, "source_config"),
      .generation_config = GetOptional(metadata, "source_generation_config")};
  const auto decay = metadata.find("decay");
  identity.decay = decay == metadata.end() ? "all" : decay->second;
  if (identity.decay != "all" && identity.decay != "matrices") {
    return absl::InvalidArgumentError(absl::StrCat(
        "the metadata of the checkpoint has ", Quoted(identity.decay),
        " as \"decay\"; it must be \"matrices\" or \"all\""));
  }
  const auto optimizer = metadata.find("optimizer");
  if (optimizer != metadata.end()) identity.optimizer = optimizer->second;
  constexpr std::string_view kOptimizers[] = {"adafactor", "adamw", "lion",
                                              "muon",      "sgd",   "shampoo"};
  if (std::find(std::begin(kOptimizers), std::end(kOptimizers),
                identity.optimizer) == std::end(kOptimizers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the metadata of the checkpoint has ", Quoted(identity.optimizer),
        " as \"optimizer\"; it must be \"adafactor\", \"adamw\", "
        "\"lion\", \"muon\", \"sgd\" or \"shampoo\""));
  }
  if (identity.optimizer == "shampoo") {
    TESSERA_ASSIGN_OR_RETURN(identity.shampoo_block,
                             GetCount(metadata, "shampoo_block"));
  }
  return identity;
}

std::string ModelDifferences(const model_files::ModelConfig& there,
                             const model_files::ModelConfig& here) {
  return OfModels(there, here).ToString();
}

absl::Status CheckSameRun(const RunIdentity& saved, int64_t steps,
                          const RunIdentity& now) {
  const std::string models = ModelDifferences(saved.model, now.model);
  if (!models.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint is of another model: ", models,
                     "; give the model that it was saved from"));
  }
  if (saved.lora != now.lora && (steps > 0 || saved.lora.rank > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint is of a run with LoRA adapters: ",
        saved.lora.ToString(), ", which cannot continue after step ", steps,
        " with ", now.lora.ToString(),
        "; give the same --lora_rank, --lora_alpha and --lora_targets, or "
        "export its weights and import them for a new run"));
  }
  if (steps == 0) return absl::OkStatus();
  if (saved.decay != now.decay) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint is of a run with --decay=", saved.decay,
        ", which cannot continue after step ", steps,
        " with --decay=", now.decay, "; give --decay=", saved.decay));
  }
  if (saved.optimizer != now.optimizer) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint is of a run with --optimizer=", saved.optimizer,
        ", whose state cannot continue after step ", steps,
        " with --optimizer=", now.optimizer,
        "; give --optimizer=", saved.optimizer));
  }
  if (saved.shampoo_block != now.shampoo_block) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint is of a run with --shampoo_block=", saved.shampoo_block,
        ", whose state cannot continue after step ", steps,
        " with --shampoo_block=", now.shampoo_block,
        "; give --shampoo_block=", saved.shampoo_block));
  }
  const Differences data = OfData(saved, now);
  if (data.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the checkpoint is of a run on other data, which cannot continue after "
      "step ",
      steps, ": ", data.ToString(),
      "; give what it was trained with, or export its weights and import them "
      "for a new run"));
}

}  // namespace tessera::train
