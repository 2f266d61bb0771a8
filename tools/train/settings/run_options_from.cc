#include "tools/train/settings/run_options_from.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/lion.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/step_scale.h"
#include "pipeline/simulate/costs.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tools/cli/cli.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/learning_rate.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/run_schedule.h"
#include "tools/train/settings/settings.h"
#include "tools/train/settings/settings_table.h"
#include "topology/config/layer_split.h"
#include "topology/config/parallel_config.h"
#include "zero3/parameters/parameter_groups.h"
#include "zero3/state/optimizer_shard.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {

namespace {

using model_files::ModelConfig;

constexpr int64_t kVocabularyMultiple = 8;

absl::StatusOr<ModelConfig> PresetFor(const Settings& settings,
                                      int64_t vocabulary) {
  TESSERA_ASSIGN_OR_RETURN(ModelConfig model,
                           model_files::PresetConfig(settings.model));
  const int64_t rounded = (vocabulary + kVocabularyMultiple - 1) /
                          kVocabularyMultiple * kVocabularyMultiple;
  model.vocabulary = std::max(model.vocabulary, rounded);
  model.max_positions = std::max(model.max_positions, settings.length);
  return model;
}

absl::StatusOr<ModelConfig> ModelOfDirectory(const Settings& settings,
                                             const std::string& path,
                                             int64_t vocabulary) {
  const absl::StatusOr<model_files::HuggingFaceConfig> config =
      model_files::LoadHuggingFaceConfig(absl::StrCat(path, "/config.json"));
  TESSERA_RETURN_IF_ERROR(
      tools::FlagError("model", settings.model, config.status()));
  const ModelConfig& model = config->model;
  if (vocabulary > model.vocabulary) {
    return RefuseFlag(
        settings.init_from.empty() ? "model" : "init_from", settings.model,
        absl::StrCat("has a vocabulary of ", model.vocabulary,
                     ", and the tokenizer one of ", vocabulary,
                     "; give the model's own, such as --tokenizer=",
                     settings.model.substr(0, 200)));
  }
  if (settings.length > model.max_positions) {
    return RefuseFlag(
        "length", settings.length,
        absl::StrCat("the model has ", model.max_positions,
                     " positions; give at most as many, such as --length=",
                     model.max_positions));
  }
  return model;
}

absl::Status NoSuchModel(const Settings& settings) {
  const std::vector<std::string_view> names = model_files::PresetNames();
  return RefuseFlag(
      "model", settings.model,
      absl::StrCat("is neither a preset nor a directory with a config.json; "
                   "presets are ",
                   absl::StrJoin(names, ", "),
                   ", such as --model=", NearestName(settings.model, names)));
}

// True if the attention layers can divide the heads among `ranks`.
bool CanShareHeads(const ModelConfig& model, int64_t ranks) {
  return model.IsLatent() ||
         tensor_parallel::QkvParts(model.heads, model.kv_heads, model.head_size,
                                   ranks)
             .ok();
}

absl::Status CheckHeads(const Settings& settings, const ModelConfig& model,
                        const MeshSizes& mesh) {
  if (CanShareHeads(model, mesh.tp)) return absl::OkStatus();
  int64_t fits = mesh.tp;
  while (!CanShareHeads(model, fits)) --fits;
  return RefuseFlag(
      "mesh", mesh.ToFlag(),
      absl::StrCat("tp ", mesh.tp, " cannot divide the ", model.kv_heads,
                   " kv heads of --model=", settings.model.substr(0, 60),
                   "; tp may be up to ", model.kv_heads,
                   ", or a multiple of it, such as tp", fits));
}

absl::Status CheckExperts(const Settings& settings, const ModelConfig& model,
                          const MeshSizes& mesh) {
  if (mesh.ep == 1) return absl::OkStatus();
  const int64_t experts = model.mixture.experts;
  if (experts == 0) {
    return RefuseFlag(
        "mesh", mesh.ToFlag(),
        absl::StrCat("ep ", mesh.ep, " divides experts, and --model=",
                     settings.model.substr(0, 60),
                     " has none; leave ep out, or give a mixture of experts, "
                     "such as --model=moe-3m"));
  }
  if (experts % mesh.ep == 0) return absl::OkStatus();
  int64_t fits = mesh.ep;
  while (experts % fits != 0 || (mesh.cp * mesh.dp) % fits != 0) --fits;
  return RefuseFlag(
      "mesh", mesh.ToFlag(),
      absl::StrCat("ep ", mesh.ep, " does not divide the ", experts,
                   " experts of --model=", settings.model.substr(0, 60),
                   "; give a divisor, such as ep", fits));
}

absl::Status CheckQkClip(const Settings& settings, const ModelConfig& model) {
  if (settings.qk_clip == 0 ||
      (!model.traits().qk_norm && model.attention_cap == 0)) {
    return absl::OkStatus();
  }
  return RefuseFlag(
      "qk_clip", settings.qk_clip,
      absl::StrCat("has no meaning for --model=", settings.model.substr(0, 60),
                   ", whose ",
                   model.traits().qk_norm
                       ? "norms of queries and keys undo a scale of "
                         "their weights"
                       : "scores of attention have a cap",
                   "; use --qk_clip=0"));
}

}  // namespace

absl::StatusOr<ModelConfig> ModelOf(const Settings& settings,
                                    int64_t vocabulary) {
  const std::string path = settings.model;
  ModelConfig model;
  if (absl::c_linear_search(model_files::PresetNames(), settings.model)) {
    TESSERA_ASSIGN_OR_RETURN(model, PresetFor(settings, vocabulary));
  } else if (IsDirectory(path)) {
    TESSERA_ASSIGN_OR_RETURN(model,
                             ModelOfDirectory(settings, path, vocabulary));
  } else {
    return NoSuchModel(settings);
  }
  TESSERA_RETURN_IF_ERROR(
      tools::FlagError("model", settings.model, model.Validate()));
  const MeshSizes& mesh = settings.parallel.mesh;
  TESSERA_RETURN_IF_ERROR(CheckHeads(settings, model, mesh));
  topology::ParallelConfig parallel = settings.parallel;
  parallel.layers = model.layers;
  TESSERA_RETURN_IF_ERROR(CheckParallel(parallel));
  TESSERA_RETURN_IF_ERROR(CheckExperts(settings, model, mesh));
  TESSERA_RETURN_IF_ERROR(CheckQkClip(settings, model));
  if (settings.objective == "dpo" && model.mixture.experts > 0) {
    return RefuseFlag("objective", settings.objective,
                      "does not support mixtures of experts, whose routers "
                      "would balance padding; give a model without experts");
  }
  return model;
}

namespace {

using tensor_parallel::ContextAlgorithm;
using tensor_parallel::Recompute;

constexpr int64_t kMaxScheduleBytes = int64_t{1} << 26;

Recompute RecomputeOf(std::string_view name) {
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (tensor_parallel::RecomputeName(recompute) == name) return recompute;
  }
  return Recompute::kNone;
}

offload::AdamWOptions AdamWOf(const Settings& settings) {
  return {.learning_rate = settings.learning_rate,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .epsilon = settings.epsilon,
          .weight_decay = settings.weight_decay,
          .seed = static_cast<uint64_t>(settings.seed),
          .threads = static_cast<int>(settings.threads)};
}

offload::SgdOptions SgdOf(const Settings& settings) {
  return {.learning_rate = settings.learning_rate,
          .momentum = settings.momentum,
          .weight_decay = settings.weight_decay,
          .decay = offload::WeightDecay::kDecoupled,
          .seed = static_cast<uint64_t>(settings.seed),
          .threads = static_cast<int>(settings.threads)};
}

offload::LionOptions LionOf(const Settings& settings) {
  return {.learning_rate = settings.learning_rate,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .weight_decay = settings.weight_decay,
          .seed = static_cast<uint64_t>(settings.seed),
          .threads = static_cast<int>(settings.threads)};
}

zero3::OptimizerKind OptimizerOf(std::string_view name) {
  if (name == "adafactor") return zero3::OptimizerKind::kAdafactor;
  if (name == "lion") return zero3::OptimizerKind::kLion;
  if (name == "muon") return zero3::OptimizerKind::kMuon;
  if (name == "shampoo") return zero3::OptimizerKind::kShampoo;
  return name == "sgd" ? zero3::OptimizerKind::kSgd
                       : zero3::OptimizerKind::kAdamW;
}

zero3::ShardedStateOptions StateOf(const Settings& settings) {
  zero3::ShardedStateOptions state;
  state.stage = static_cast<int>(settings.zero);
  // CheckSettings has checked the name.
  state.layout = topology::ParseEnum<zero3::LayoutKind>(settings.layout)
                     .value_or(zero3::LayoutKind::kChunks);
  state.bucket_bytes = settings.bucket_bytes;
  state.persistence_threshold = settings.persistence_threshold;
  state.quantized_weights = settings.quantized_weights;
  state.quantized_gradients = settings.quantized_gradients;
  state.hpz_partition_size = settings.hpz_partition_size;
  state.adamw = AdamWOf(settings);
  state.sgd = SgdOf(settings);
  state.muon_momentum = settings.momentum;
  state.adafactor = {.beta2_decay = settings.beta2_decay,
                     .threshold = settings.update_threshold};
  state.shampoo = {.block = settings.shampoo_block,
                   .every = settings.shampoo_every,
                   .epsilon = settings.shampoo_epsilon};
  state.lion = LionOf(settings);
  state.optimizer = OptimizerOf(settings.optimizer);
  state.decayed = settings.decay == "all" ? zero3::DecayedParameters::kAll
                                          : zero3::DecayedParameters::kMatrices;
  state.clip_norm = settings.clip_norm;
  if (settings.parallel.dtype == DType::kF16) {
    const bool is_dynamic = settings.loss_scale == 0;
    state.loss_scale = {
        .dynamic = is_dynamic,
        .initial = is_dynamic ? zero3::kFirstLossScale : settings.loss_scale,
        .growth_interval = settings.loss_scale_window};
  }
  state.speculative_bytes = settings.speculative_bytes;
  return state;
}

absl::StatusOr<LearningRate> LearningRateOf(const Settings& settings) {
  LearningRate rate = {
      .peak = settings.learning_rate,
      .least = settings.min_learning_rate == -1 ? settings.learning_rate / 10
                                                : settings.min_learning_rate,
      .warmup_steps = settings.warmup_tokens > 0
                          ? StepsOfTokens(settings.warmup_tokens, settings)
                          : settings.warmup_steps,
      .decay_steps = settings.decay_steps == -1 ? settings.steps / 10
                                                : settings.decay_steps,
      .total_steps = settings.steps};
  TESSERA_ASSIGN_OR_RETURN(rate.schedule,
                           ParseRateSchedule(settings.lr_schedule));
  return rate;
}

absl::Status SetSchedule(const Settings& settings, RunOptions& options) {
  options.schedule = settings.parallel.schedule;
  if (!IsScheduleFile(settings.parallel.schedule)) return absl::OkStatus();
  options.schedule = "file";
  TESSERA_ASSIGN_OR_RETURN(
      options.schedule_table,
      ReadFile(settings.parallel.schedule, kMaxScheduleBytes),
      tools::FlagError("schedule", settings.parallel.schedule, _));
  return absl::OkStatus();
}

// Checks that need the model; errors name the flag to change.
absl::Status CheckPlan(const Settings& settings, const RunOptions& options) {
  if (options.schedule_table.empty() && options.max_gathered_bytes == 0) {
    return absl::OkStatus();
  }
  RunOptions unlimited = options;
  unlimited.max_gathered_bytes = 0;
  TESSERA_RETURN_IF_ERROR(
      tools::FlagError("schedule", settings.parallel.schedule,
                       RunSchedule::Create(unlimited).status()));
  if (options.max_gathered_bytes == 0) return absl::OkStatus();
  return tools::FlagError("max_gathered_bytes",
                          absl::StrCat(settings.max_gathered_bytes),
                          RunSchedule::Create(options).status());
}

// The batches and steps of the run.
void SetBatches(const Settings& settings, RunOptions& options) {
  const BatchSchedule batches = BatchScheduleOf(settings);
  options.batch = batches.batch;
  options.first_batch = batches.first;
  options.batch_warmup_steps = batches.warmup_steps;
  options.micro_batch = settings.parallel.micro_batch;
  options.length = settings.length;
  options.steps = settings.steps;
  options.seed = static_cast<uint64_t>(settings.seed);
  if (settings.spike_factor > 0) options.spike_window = settings.spike_window;
}

// The loss and what the layers are trained with.
void SetLoss(const Settings& settings, RunOptions& options) {
  options.dropout = settings.dropout;
  options.label_smoothing = settings.label_smoothing;
  options.z_loss = settings.z_loss;
  options.qk_clip = settings.qk_clip;
  if (settings.objective == "dpo") options.dpo_beta = settings.dpo_beta;
  if (settings.expert_balance != -1) options.balance = settings.expert_balance;
  options.router_z_loss = settings.router_z_loss;
  options.expert_capacity = settings.expert_capacity;
  options.router_bias_rate = settings.router_bias_rate;
  // The tokenizer, which is unknown here, has the token.
  if (settings.document_attention) options.document_end = -1;
  if (settings.lora_rank > 0) {
    options.lora = {.rank = settings.lora_rank, .alpha = settings.lora_alpha};
  }
  if (settings.base_weights != "full") {
    options.base_codec = settings.base_weights;
  }
  options.lora_attention = settings.lora_targets != "mlp";
  options.lora_mlp = settings.lora_targets != "attention";
}

// The layers of each pipeline stage. The embedding costs no operations.
absl::Status SplitLayers(const Settings& settings, RunOptions& options) {
  topology::ParallelConfig parallel = settings.parallel;
  if (parallel.split == topology::LayerSplit()) return absl::OkStatus();
  parallel.layers = options.model.layers;
  std::vector<double> costs;
  for (const pipeline::StageCosts& window : WindowCosts(options).stages) {
    costs.push_back(window.forward + window.backward_input +
                    window.backward_weight);
  }
  // The embedding and the head are in the stages of the first and the last
  // layer.
  costs.end()[-2] += costs.back();
  costs.pop_back();
  costs[1] += costs[0];
  TESSERA_ASSIGN_OR_RETURN(
      options.layers_per_stage,
      parallel.LayersPerStage(std::span(costs).subspan(1)));
  return absl::OkStatus();
}

// How layers are sharded, gathered and recomputed.
void SetParallelism(const Settings& settings, RunOptions& options) {
  options.chunks = settings.parallel.chunks;
  options.sequence_parallel = settings.sequence_parallel;
  options.overlap_chunks = settings.overlap_chunks;
  options.zigzag = settings.context == "zigzag";
  options.context_attention = settings.context_attention == "ulysses"
                                  ? ContextAlgorithm::kUlysses
                                  : ContextAlgorithm::kRing;
  options.recompute = RecomputeOf(settings.recompute);
  options.gather_ahead = settings.gather_ahead;
  options.max_gathered_bytes = settings.max_gathered_bytes;
  options.device_budget = settings.parallel.device_budget.bytes();
  options.reduce = settings.reduce == "each"   ? ReduceChoice::kEachMicroBatch
                   : settings.reduce == "last" ? ReduceChoice::kLastMicroBatch
                                               : ReduceChoice::kAuto;
}

}  // namespace

absl::StatusOr<RunOptions> RunOptionsFrom(
    const Settings& settings, const model_files::ModelConfig& model) {
  TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
  RunOptions options;
  options.mesh = settings.parallel.mesh;
  if (settings.order != kAutoOrder) {
    TESSERA_ASSIGN_OR_RETURN(options.mesh.order,
                             options.mesh.ParseOrder(settings.order));
  }
  options.model = model;
  options.dtype = settings.parallel.dtype;
  options.fp8 = settings.parallel.fp8;
  SetBatches(settings, options);
  SetLoss(settings, options);
  SetParallelism(settings, options);
  TESSERA_ASSIGN_OR_RETURN(options.learning_rate, LearningRateOf(settings));
  TESSERA_RETURN_IF_ERROR(SetSchedule(settings, options));
  options.state = StateOf(settings);
  // Only tools/train/checkpoint knows the names that the patterns must match.
  TESSERA_ASSIGN_OR_RETURN(options.state.parameter_groups,
                           zero3::ParseParameterGroups(settings.param_groups));
  TESSERA_ASSIGN_OR_RETURN(options.state.moments,
                           offload::ParseMomentFormat(settings.moments));
  TESSERA_RETURN_IF_ERROR(SplitLayers(settings, options));
  TESSERA_RETURN_IF_ERROR(CheckPlan(settings, options));
  return options;
}

}  // namespace tessera::train
