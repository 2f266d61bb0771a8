#include "tools/train/parity/testing/parity_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "offload/codec/codec.h"
#include "offload/optimizer/parameter_range.h"
#include "pipeline/generate/generate.h"
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/sharded_model.h"
#include "topology/config/named_enum.h"

namespace tessera::train {

namespace {

bool IsLatent(std::string_view architecture) {
  return architecture == "deepseek2" || architecture == "deepseek3";
}

void SetDeepSeek(bool is_v3, RunOptions& options) {
  model_files::ModelConfig& model = options.model;
  model.architecture = is_v3 ? model_files::Architecture::kDeepSeekV3
                             : model_files::Architecture::kDeepSeekV2;
  model.latent = {.query_rank = is_v3 ? 7 : 0,
                  .kv_rank = 6,
                  .nope = 3,
                  .rope = 4,
                  .value = is_v3 ? 5 : 7,
                  .interleaved = !is_v3,
                  .score_mscale = is_v3 ? 0.8 : 0};
  model.kv_heads = model.heads;
  model.head_size = model.latent.nope + model.latent.rope;
  if (is_v3) {
    model.rotary = {.base = 100,
                    .scaling = tensor_parallel::RotaryScaling::kYarn,
                    .factor = 4,
                    .low_turns = 0.1,
                    .high_turns = 2,
                    .original_positions = 16};
    options.router_bias_rate = 0.01;
  }
  model.mixture = {.experts = 8,
                   .per_token = 3,
                   .intermediate = 3,
                   .shared_intermediate = 6,
                   .dense_layers = 1,
                   .normalise = is_v3,
                   .scale = 1.5,
                   .groups = 4,
                   .groups_per_token = 3};
}

// The first of a head's two frequencies is high, the other is mixed.
tensor_parallel::RotaryFrequencies Yarn() {
  return {.base = 100,
          .scaling = tensor_parallel::RotaryScaling::kYarn,
          .factor = 4,
          .low_turns = 0.1,
          .high_turns = 2,
          .original_positions = 16,
          .attention_factor = 1.1,
          .truncate = false};
}

// Changes the model and what only this architecture has.
void SetArchitecture(std::string_view architecture, RunOptions& options) {
  model_files::ModelConfig& model = options.model;
  if (architecture == "llama3.1") {
    // The first of a head's two frequencies is between high and low, the other
    // is low.
    model.rotary = {.scaling = tensor_parallel::RotaryScaling::kLlama3,
                    .factor = 8,
                    .original_positions = 16};
    model.qkv_bias = model.output_bias = true;
  } else if (architecture == "qwen2") {
    model.architecture = model_files::Architecture::kQwen2;
    model.qkv_bias = true;
  } else if (architecture == "mistral") {
    model.architecture = model_files::Architecture::kMistral;
    model.window = 5;
  } else if (architecture == "qwen3") {
    model.architecture = model_files::Architecture::kQwen3;
    model.window = 3;
    model.window_begin = 1;
  } else if (architecture == "mixtral") {
    model.architecture = model_files::Architecture::kMixtral;
    model.mixture = {
        .experts = 4, .per_token = 2, .intermediate = 7, .balance = 0.1};
    options.router_z_loss = 0.01;
  } else if (architecture == "dots1") {
    model.architecture = model_files::Architecture::kDots1;
    model.mixture = {.experts = 8,
                     .per_token = 3,
                     .intermediate = 3,
                     .shared_intermediate = 6,
                     .dense_layers = 1,
                     .scale = 1.5};
    options.router_bias_rate = 0.01;
    // For all tokens: devices pad the rows of experts, and nothing is dropped.
    options.expert_capacity = 8 / 3.0;
  } else if (architecture == "gemma") {
    model.architecture = model_files::Architecture::kGemma;
  } else if (architecture == "gemma2") {
    model.architecture = model_files::Architecture::kGemma2;
    model.window = 5;
    model.full_layers = {1};
    model.score_scalar = 3;
    model.attention_cap = 0.5;
    model.final_cap = 2;
  } else if (architecture == "olmo2") {
    model.architecture = model_files::Architecture::kOlmo2;
    // The first outputs are so small that their norms would magnify rounding.
    model.norm_epsilon = 0.1;
  } else if (architecture == "smollm3") {
    model.architecture = model_files::Architecture::kSmolLm3;
    model.no_rope_layers = {1};
    model.rotary = Yarn();
  } else if (architecture == "gpt_oss") {
    model.architecture = model_files::Architecture::kGptOss;
    model.qkv_bias = model.output_bias = true;
    model.window = 5;
    model.full_layers = {1};
    model.rotary = Yarn();
    model.mixture = {
        .experts = 4, .per_token = 2, .intermediate = 7, .balance = 0.1};
  } else if (IsLatent(architecture)) {
    SetDeepSeek(architecture == "deepseek3", options);
  }
}

}  // namespace

ParityCase PlainCase(const ParityCase& run) {
  return {.micro_batch = run.dpo ? 2 : ParityCase().micro_batch,
          .architecture = run.architecture,
          .documents = run.documents,
          .prompts = run.prompts,
          .dpo = run.dpo,
          .tied = run.tied,
          .clip = run.clip,
          .dropout = run.dropout,
          .loss_terms = run.loss_terms,
          .decay_all = run.decay_all,
          .optimizer = run.optimizer,
          .qk_clip = run.qk_clip,
          .param_groups = run.param_groups,
          .lora_rank = run.lora_rank,
          .lora_targets = run.lora_targets,
          .base_weights = run.base_weights == "full" ? "full" : "rounded",
          .kv_heads = run.kv_heads,
          .moments = run.moments,
          .length = run.length,
          .layers = run.layers,
          .dtype = run.dtype,
          .fp8 = run.fp8,
          .loss_scale = run.loss_scale,
          .multiples_of_16 = run.multiples_of_16,
          .steps = run.steps};
}

bool IsMixture(std::string_view architecture) {
  return architecture == "mixtral" || architecture == "dots1" ||
         architecture == "gpt_oss" || IsLatent(architecture);
}

double RoundingFactor(const ParityCase& run) {
  return run.moments == "f32" ? 1 : 10;
}

namespace {

// The first weights, of which the frozen matrices are rounded to NF4.
void RoundFirstWeights(RunOptions& options) {
  const FirstWeights first({.seed = options.seed,
                            .deviation = options.model.initializer_range,
                            .tied_embeddings = options.model.tied_embeddings});
  options.first_weights = [first](const tensor_parallel::Parameter& parameter,
                                  int64_t begin,
                                  TensorView elements) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(first.Draw(parameter, begin, elements));
    if (!IsHiddenMatrix(parameter.name())) return absl::OkStatus();
    const std::span<std::byte> values = {
        elements.data(), static_cast<size_t>(elements.size_in_bytes())};
    TESSERA_ASSIGN_OR_RETURN(const auto codec, offload::CreateCodec("nf4"));
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t most,
        codec->MaxEncodedBytes(elements.dtype(), elements.element_count()));
    std::vector<std::byte> encoded(static_cast<size_t>(most));
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                             codec->Encode(elements.dtype(), values, encoded));
    encoded.resize(static_cast<size_t>(bytes));
    return codec->Decode(elements.dtype(), encoded, values);
  };
}

// Sets the sizes of latent attention, if the model has it, to multiples of 16,
// and those of the heads that are divided among tensor ranks to multiples of
// `head`.
void SetLatentSizes(int64_t head, model_files::ModelConfig& model) {
  if (!model.IsLatent()) return;
  model_files::LatentConfig& latent = model.latent;
  if (latent.query_rank > 0) latent.query_rank = 16;
  latent.kv_rank = latent.rope = 16;
  latent.nope = latent.value = head;
  model.kv_heads = model.heads;
  model.head_size = latent.nope + latent.rope;
}

}  // namespace

RunOptions RunOptionsOf(const ParityCase& run) {
  RunOptions options;
  options.mesh = run.mesh;
  options.model = {.vocabulary = 257,
                   .hidden = 20,
                   .intermediate = 27,
                   .layers = run.layers,
                   .heads = 6,
                   .kv_heads = run.kv_heads,
                   .head_size = 4,
                   .tied_embeddings = run.tied,
                   .initializer_range = 0.1};
  SetArchitecture(run.architecture, options);
  if (run.multiples_of_16) {
    options.model.hidden = 32;
    options.model.intermediate = 96;
    options.model.heads = 4;
    options.model.head_size = 16;
    SetLatentSizes(16, options.model);
  }
  if (run.base_weights != "full") {
    options.model.hidden = 64;
    options.model.intermediate = 128;
    if (options.model.mixture.experts > 0) {
      options.model.mixture.intermediate = 128;
      if (IsLatent(run.architecture)) {
        options.model.mixture.shared_intermediate = 128;
      }
    }
    options.model.heads = 4;
    options.model.head_size = 32;
    SetLatentSizes(32, options.model);
  }
  if (run.base_weights == "nf4") options.base_codec = run.base_weights;
  if (run.base_weights == "rounded") RoundFirstWeights(options);
  options.dtype = run.dtype;
  options.fp8 = run.fp8;
  options.batch = 8;
  options.micro_batch = run.micro_batch;
  options.length = run.length;
  options.dropout = run.dropout;
  options.lora = {.rank = run.lora_rank, .alpha = 12};
  options.lora_attention = run.lora_targets != "mlp";
  options.lora_mlp = run.lora_targets != "attention";
  if (run.dpo) options.dpo_beta = 0.5;
  if (run.documents) options.document_end = 'e';
  if (run.loss_terms) {
    options.label_smoothing = 0.1;
    options.z_loss = 1e-3;
  }
  options.steps = run.steps;
  options.learning_rate = {.peak = 0.01,
                           .least = 0.001,
                           .warmup_steps = 3,
                           .total_steps = run.steps};
  options.schedule = run.schedule;
  options.chunks = run.chunks;
  options.layers_per_stage = run.layers_per_stage;
  options.sequence_parallel = run.sequence_parallel;
  options.overlap_chunks = run.overlap_chunks;
  options.zigzag = run.zigzag;
  options.context_attention = run.context_attention;
  options.recompute = run.recompute;
  options.gather_ahead = run.gather_ahead;
  options.graphs = run.graphs ? GraphChoice::kOn : GraphChoice::kOff;
  // Cases give the limit for f32.
  options.max_gathered_bytes =
      run.max_gathered_bytes * (run.dtype == DType::kF64 ? 2 : 1);
  options.reduce = run.reduce == "each"   ? ReduceChoice::kEachMicroBatch
                   : run.reduce == "last" ? ReduceChoice::kLastMicroBatch
                                          : ReduceChoice::kAuto;
  options.state.stage = run.stage;
  options.state.layout = run.layout;
  options.state.bucket_bytes = run.bucket_bytes;
  options.state.persistence_threshold = run.persistence_threshold;
  options.state.moments = *offload::ParseMomentFormat(run.moments);
  options.state.hpz_partition_size = run.hpz_partition_size;
  options.state.quantized_weights = run.quantized_weights;
  options.state.quantized_gradients = run.quantized_gradients;
  options.state.clip_norm = run.clip ? 0.5 : 0;
  options.state.adamw.weight_decay = 0.1;
  if (run.optimizer == "muon") {
    options.state.optimizer = zero3::OptimizerKind::kMuon;
  } else if (run.optimizer == "adafactor") {
    options.state.optimizer = zero3::OptimizerKind::kAdafactor;
  } else if (run.optimizer == "shampoo") {
    options.state.optimizer = zero3::OptimizerKind::kShampoo;
    options.state.shampoo = {.block = 5, .every = 3};
  } else if (run.optimizer == "lion") {
    options.state.optimizer = zero3::OptimizerKind::kLion;
    options.state.lion.weight_decay = 0.1;
    options.learning_rate.peak = 2e-3;
  } else if (run.optimizer == "sgd") {
    options.state.optimizer = zero3::OptimizerKind::kSgd;
    options.state.sgd = {.momentum = 0.9,
                         .weight_decay = 0.1,
                         .decay = offload::WeightDecay::kDecoupled};
  }
  options.state.decayed = run.decay_all ? zero3::DecayedParameters::kAll
                                        : zero3::DecayedParameters::kMatrices;
  options.qk_clip = run.qk_clip;
  options.state.parameter_groups =
      *zero3::ParseParameterGroups(run.param_groups);
  options.state.speculative_bytes = run.speculative_bytes;
  if (run.dtype == DType::kF16) {
    options.state.loss_scale = {
        .dynamic = true, .initial = run.loss_scale, .growth_interval = 2};
  }
  return options;
}

std::ostream& operator<<(std::ostream& os, const ParityCase& run) {
  return os << run.mesh.ToString() << " schedule=" << run.schedule << "/"
            << run.chunks << " micro_batch=" << run.micro_batch
            << " recompute=" << run.recompute
            << " sequence_parallel=" << run.sequence_parallel
            << " overlap_chunks=" << run.overlap_chunks
            << " zigzag=" << run.zigzag
            << " context_attention=" << run.context_attention
            << " zero=" << run.stage << " layout=" << run.layout
            << " bucket_bytes=" << run.bucket_bytes
            << " persistence_threshold=" << run.persistence_threshold
            << " gather_ahead=" << run.gather_ahead
            << " max_gathered_bytes=" << run.max_gathered_bytes
            << " reduce=" << run.reduce
            << " hpz_partition_size=" << run.hpz_partition_size
            << " quantized=" << run.quantized_weights << run.quantized_gradients
            << " offload=" << run.offload << " tier=" << run.tier
            << " lossless=" << run.lossless
            << " speculative_bytes=" << run.speculative_bytes
            << " architecture=" << run.architecture
            << " documents=" << run.documents << " prompts=" << run.prompts
            << " dpo=" << run.dpo << " tied=" << run.tied
            << " clip=" << run.clip << " dropout=" << run.dropout
            << " loss_terms=" << run.loss_terms
            << " decay_all=" << run.decay_all << " optimizer=" << run.optimizer
            << " qk_clip=" << run.qk_clip
            << " param_groups=" << run.param_groups << " lora=" << run.lora_rank
            << " of " << run.lora_targets
            << " base_weights=" << run.base_weights
            << " kv_heads=" << run.kv_heads << " moments=" << run.moments
            << " length=" << run.length << " layers=" << run.layers << " "
            << DTypeName(run.dtype) << " fp8=" << run.fp8
            << " loss_scale=" << run.loss_scale
            << " multiples_of_16=" << run.multiples_of_16
            << " steps=" << run.steps << " device_seed=" << run.device_seed
            << " graphs=" << run.graphs;
}

namespace {

// Indices into ParityOptions().
enum Place {
  kDp,
  kPp,
  kCp,
  kTp,
  kEp,
  kSchedule,
  kChunks,
  kMicroBatch,
  kRecompute,
  kSequenceParallel,
  kOverlap,
  kContext,
  kContextAttention,
  kZero,
  kLayout,
  kBucket,
  kPersistence,
  kGatherAhead,
  kMaxGathered,
  kReduce,
  kReplicas,
  kHpz,
  kOffload,
  kTier,
  kLossless,
  kArchitecture,
  kDocuments,
  kTied,
  kClip,
  kDropout,
  kKvHeads,
  kMoments,
  kDecay,
  kLossTerms,
};

std::vector<std::string> Schedules() {
  std::vector<std::string> names;
  for (const std::string_view name : pipeline::GeneratorNames()) {
    names.emplace_back(name);
  }
  return names;
}

// A limit in bytes within which two layers fit, or the head and the embedding,
// which a DualPipe rank holds together: in f32 on one tensor rank the head, the
// largest window, takes 20640 bytes, and a layer with 6 kv heads up to 16048.
constexpr const char* kGatheredLimit = "42000";

constexpr const char* kDropoutProbability = "0.1";

std::vector<ParityOption> MakeOptions() {
  const std::vector<std::string> sizes = {"1", "2", "4", "8"};
  const std::vector<std::string> off_on = {"off", "on"};
  return {{"dp", sizes},
          {"pp", sizes},
          {"cp", sizes},
          {"tp", sizes},
          {"ep", {"1", "2", "4"}},
          {"schedule", Schedules()},
          {"chunks", {"1", "2", "3"}},
          {"micro_batch", {"1", "2"}},
          {"recompute", {"none", "selective", "full"}},
          {"sequence_parallel", off_on},
          {"overlap_chunks", {"0", "3"}},
          {"context", {"contiguous", "zigzag"}},
          {"context_attention", {"ring", "ulysses"}},
          {"zero", {"0", "1", "2", "3"}},
          {"layout", {"chunks", "round_robin", "balanced"}},
          {"bucket_bytes", {"25000000", "700"}},
          {"persistence", {"0", "100"}},
          {"gather_ahead", {"0", "1", "2", "3"}},
          {"max_gathered_bytes", {"0", kGatheredLimit}},
          {"reduce", {"auto", "each", "last"}},
          {"dp_replicate", {"1", "2"}},
          {"hpz", {"0", "2"}},
          {"offload",
           {"none", "optimizer", "gradients", "params", "all", "activations"}},
          {"tier", {"none", "host", "file"}},
          {"lossless", off_on},
          {"architecture",
           {"llama", "llama3.1", "mistral", "qwen2", "qwen3", "mixtral",
            "dots1", "gemma", "gemma2", "olmo2", "smollm3", "gpt_oss",
            "deepseek2", "deepseek3"}},
          {"documents", off_on},
          {"tied", off_on},
          {"clip", off_on},
          {"dropout", {"0", kDropoutProbability}},
          {"kv_heads", {"1", "2", "3", "6"}},
          {"moments", {"f32", "bf16", "int8"}},
          {"decay", {"matrices", "all"}},
          {"loss_terms", off_on}};
}

// The chosen options of a row, which may be partial.
class Chosen {
 public:
  explicit Chosen(const CoveringRow& row) : row_(row) {}

  bool has(Place place) const { return row_[place] != kNotChosen; }
  const std::string& value(Place place) const {
    return ParityOptions()[place].values[static_cast<size_t>(row_[place])];
  }
  bool is(Place place, std::string_view value) const {
    return has(place) && this->value(place) == value;
  }
  bool is_not(Place place, std::string_view value) const {
    return has(place) && this->value(place) != value;
  }
  bool on(Place place) const { return is(place, "on"); }
  // The option as a number; 0 if it is not chosen.
  int64_t number(Place place) const {
    int64_t number = 0;
    return has(place) && absl::SimpleAtoi(value(place), &number) ? number : 0;
  }
  // The size of a mesh axis. If it is not chosen, the smallest size that the
  // other options allow.
  int64_t ranks(Place axis) const {
    if (has(axis)) return number(axis);
    const bool travels = axis == kTp   ? is_not(kOverlap, "0")
                         : axis == kCp ? is(kContextAttention, "ulysses")
                                       : false;
    return travels ? 2 : 1;
  }

 private:
  const CoveringRow& row_;
};

constexpr int64_t kMostRanks = 8;
constexpr int64_t kBatch = 8;

int64_t WorldSize(const Chosen& chosen) {
  int64_t ranks = 1;
  for (const Place axis : {kDp, kPp, kCp, kTp}) ranks *= chosen.ranks(axis);
  return ranks;
}

bool RanksArePossible(const Chosen& chosen) {
  const int64_t tp = chosen.number(kTp), kv = chosen.number(kKvHeads);
  const bool heads = tp == 0 || kv == 0 || kv >= tp || tp % kv == 0;
  const bool batch = chosen.number(kDp) * chosen.number(kMicroBatch) <= kBatch;
  return WorldSize(chosen) <= kMostRanks && heads && batch;
}

// dp_replicate must divide dp, and hpZ needs stage 3 and as many shard ranks.
// An axis that is not chosen may still take any size that kMostRanks allows.
bool ReplicasArePossible(const Chosen& chosen) {
  if (chosen.is(kHpz, "2") && chosen.is_not(kZero, "3")) return false;
  const int64_t more = kMostRanks / WorldSize(chosen);
  const int64_t dp = chosen.has(kDp) ? chosen.number(kDp) : more;
  const int64_t cp = chosen.ranks(kCp);
  const int64_t replicas = std::max<int64_t>(chosen.number(kReplicas), 1);
  if (dp < replicas) return false;
  const int64_t most =
      chosen.has(kDp) && !chosen.has(kCp) ? dp * more : dp * cp;
  return most / replicas >= std::max<int64_t>(chosen.number(kHpz), 1);
}

// Weights are gathered only at stage 3, and the time of reductions matters only
// from stage 2 on. With a limit the gather distance is chosen automatically.
bool ParameterActionsSaySomething(const Chosen& chosen) {
  const bool gathers = chosen.is_not(kGatherAhead, "1");
  const bool limits = chosen.is_not(kMaxGathered, "0");
  if (gathers && limits) return false;
  if (!chosen.has(kZero)) return true;
  const int64_t stage = chosen.number(kZero);
  if (stage < 2 && chosen.is_not(kReduce, "auto")) return false;
  return stage == 3 || !(gathers || limits);
}

int64_t LargestOtherAxis(const Chosen& chosen) {
  return std::max({chosen.ranks(kDp), chosen.ranks(kCp), chosen.ranks(kTp)});
}

// True for schedules that represent all others when another axis has more than
// two ranks, or when there is one pipeline rank. A schedule affects other axes
// only by the order of their calls, which does not depend on their sizes.
bool IsOneOfMany(std::string_view schedule) {
  return schedule == "1f1b" || schedule == "interleaved_1f1b" ||
         schedule == "zb_v";
}

bool SaysSomething(const Chosen& chosen) {
  if (!chosen.has(kSchedule) || IsOneOfMany(chosen.value(kSchedule))) {
    return true;
  }
  return LargestOtherAxis(chosen) <= (chosen.is(kPp, "1") ? 1 : 2);
}

bool ScheduleIsPossible(const Chosen& chosen) {
  if (!chosen.has(kSchedule)) return true;
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    if (generator.name != chosen.value(kSchedule)) continue;
    const int64_t ranks = chosen.number(kPp), chunks = chosen.number(kChunks);
    if (generator.even_ranks && ranks % 2 != 0) return false;
    return generator.chunks == 0 || chunks == 0 || chunks == generator.chunks;
  }
  return false;
}

bool OffloadIsPossible(const Chosen& chosen) {
  const int64_t least_stage =
      chosen.is(kOffload, "gradients")                              ? 2
      : chosen.is(kOffload, "params") || chosen.is(kOffload, "all") ? 3
                                                                    : 0;
  if (chosen.has(kZero) && chosen.number(kZero) < least_stage) return false;
  if (chosen.is(kOffload, "none") && chosen.is_not(kTier, "none")) return false;
  if (chosen.is_not(kOffload, "none") && chosen.is(kTier, "none")) return false;
  const bool nothing = chosen.is(kOffload, "none") || chosen.is(kTier, "none");
  return !(nothing && chosen.on(kLossless));
}

// A tensor or expert rank rounds moments in blocks of its slice, one rank in
// blocks of the whole parameter.
bool MomentsAreComparable(const Chosen& chosen) {
  const bool slices = chosen.ranks(kTp) > 1 || chosen.is_not(kEp, "1");
  // A moment that is rounded differently changes a router's weights so much
  // that some tokens select other experts.
  const bool jumps =
      chosen.has(kArchitecture) && IsMixture(chosen.value(kArchitecture));
  return !(chosen.is_not(kMoments, "f32") && (slices || jumps));
}

bool ContextAttentionSaysSomething(const Chosen& chosen) {
  return !(chosen.is(kContextAttention, "ulysses") && chosen.is(kCp, "1"));
}

// Experts are divided among context and data ranks.
bool ExpertsArePossible(const Chosen& chosen) {
  const bool divides = chosen.is_not(kEp, "1");
  if (!divides) return true;
  if (chosen.has(kArchitecture) && !IsMixture(chosen.value(kArchitecture))) {
    return false;
  }
  const int64_t ep = chosen.number(kEp);
  if (chosen.has(kDp) && chosen.has(kCp)) {
    return chosen.number(kDp) * chosen.number(kCp) % ep == 0;
  }
  // An axis that is not chosen may take any size that kMostRanks allows.
  const int64_t known = chosen.ranks(kDp) * chosen.ranks(kCp);
  return known * (kMostRanks / WorldSize(chosen)) >= ep;
}

// Tensor ranks exchange tokens in chunks only with sequence parallelism.
bool OverlapSaysSomething(const Chosen& chosen) {
  return !(chosen.is_not(kOverlap, "0") &&
           (chosen.is(kTp, "1") || chosen.is(kSequenceParallel, "off")));
}

tensor_parallel::Recompute RecomputeNamed(std::string_view name) {
  using tensor_parallel::Recompute;
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (tensor_parallel::RecomputeName(recompute) == name) return recompute;
  }
  return Recompute::kNone;
}

}  // namespace

const std::vector<ParityOption>& ParityOptions() {
  static const auto& options = *new std::vector<ParityOption>(MakeOptions());
  return options;
}

CoveringProblem ParityProblem() {
  CoveringProblem problem;
  for (const ParityOption& option : ParityOptions()) {
    problem.levels.push_back(static_cast<int>(option.values.size()));
  }
  problem.allowed = [](const CoveringRow& row) {
    return IsPossible(row) && SaysSomething(Chosen(row));
  };
  problem.seed = 16;  // Of forty seeds, it gives the fewest rows.
  return problem;
}

bool IsPossible(const CoveringRow& row) {
  const Chosen chosen(row);
  return RanksArePossible(chosen) && ReplicasArePossible(chosen) &&
         ParameterActionsSaySomething(chosen) && ScheduleIsPossible(chosen) &&
         OffloadIsPossible(chosen) && MomentsAreComparable(chosen) &&
         OverlapSaysSomething(chosen) &&
         ContextAttentionSaysSomething(chosen) && ExpertsArePossible(chosen);
}

int OptionNumber(const std::string& name) {
  const auto& options = ParityOptions();
  const auto found =
      std::find_if(options.begin(), options.end(),
                   [&](const ParityOption& o) { return o.name == name; });
  return static_cast<int>(found - options.begin());
}

int ValueNumber(const std::string& option, const std::string& value) {
  const auto& values =
      ParityOptions()[static_cast<size_t>(OptionNumber(option))].values;
  return static_cast<int>(std::find(values.begin(), values.end(), value) -
                          values.begin());
}

ParityCase CaseOf(const CoveringRow& row) {
  const Chosen chosen(row);
  return {
      .mesh = {.dp = chosen.number(kDp),
               .pp = chosen.number(kPp),
               .cp = chosen.number(kCp),
               .tp = chosen.number(kTp),
               .dp_replicate = chosen.number(kReplicas),
               .ep = chosen.number(kEp)},
      .schedule = chosen.value(kSchedule),
      .chunks = chosen.number(kChunks),
      .micro_batch = chosen.number(kMicroBatch),
      .recompute = RecomputeNamed(chosen.value(kRecompute)),
      .sequence_parallel = chosen.on(kSequenceParallel),
      .overlap_chunks = chosen.number(kOverlap),
      .zigzag = chosen.is(kContext, "zigzag"),
      .context_attention = chosen.is(kContextAttention, "ulysses")
                               ? tensor_parallel::ContextAlgorithm::kUlysses
                               : tensor_parallel::ContextAlgorithm::kRing,
      .stage = static_cast<int>(chosen.number(kZero)),
      .layout = *topology::ParseEnum<zero3::LayoutKind>(chosen.value(kLayout)),
      .bucket_bytes = chosen.number(kBucket),
      .persistence_threshold = chosen.number(kPersistence),
      .gather_ahead = chosen.number(kGatherAhead),
      .max_gathered_bytes = chosen.number(kMaxGathered),
      .reduce = chosen.value(kReduce),
      .hpz_partition_size = chosen.number(kHpz),
      .offload = chosen.value(kOffload),
      .tier = chosen.value(kTier),
      .lossless = chosen.on(kLossless),
      .architecture = chosen.value(kArchitecture),
      .documents = chosen.on(kDocuments),
      .tied = chosen.on(kTied),
      .clip = chosen.on(kClip),
      .dropout = chosen.is_not(kDropout, "0") ? 0.1 : 0,
      .loss_terms = chosen.on(kLossTerms),
      .decay_all = chosen.is(kDecay, "all"),
      .kv_heads = chosen.number(kKvHeads),
      .moments = chosen.value(kMoments)};
}

}  // namespace tessera::train
