#include "tools/train/settings/settings_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "topology/config/named_enum.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {
namespace {

using Number = ParallelField<int64_t>;
using Text = ParallelField<std::string>;

// InvalidArgument unless `value` is one of `names`. The message lists the names
// and has the nearest one as its example.
absl::Status CheckChoice(std::string_view flag, std::string_view value,
                         const std::vector<std::string_view>& names) {
  if (absl::c_linear_search(names, value)) return absl::OkStatus();
  return RefuseFlag(
      flag, value,
      absl::StrCat("must be one of ", absl::StrJoin(names, ", "),
                   ", such as --", flag, "=",
                   value.empty() ? names.front() : NearestName(value, names)));
}

constexpr std::string_view kModelAndData = "Model and data";
constexpr std::string_view kParallelism = "Parallelism";
constexpr std::string_view kStateAndMemory = "Model state and memory";
constexpr std::string_view kOptimizer = "Optimizer and learning rate";
constexpr std::string_view kLoss = "Loss and regularization";
constexpr std::string_view kOutputs = "Checkpoints and outputs";
constexpr std::string_view kExecution = "Execution";
constexpr bool kCommon = true;

constexpr int64_t kMany = int64_t{1} << 40;
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr WholeRange kCount = {0, kMany};
constexpr WholeRange kPositive = {1, kMany};

constexpr RealRange NonNegative(std::string_view example) {
  return {.below = kInfinity, .example = example};
}
constexpr RealRange Positive(std::string_view example) {
  return {.with_least = false, .below = kInfinity, .example = example};
}
constexpr RealRange BelowOne(std::string_view example) {
  return {.below = 1, .example = example};
}
// A number from 0, or -1 for a default.
constexpr RealRange NonNegativeOrDefault(std::string_view example) {
  return {.below = kInfinity, .example = example, .or_value = -1};
}

constexpr SettingsField kFields[] = {
    {"model", kModelAndData, &Settings::model, AnyValue{},
     "model to train: a preset, llama-1m to llama-70b, or a directory with a "
     "Hugging Face config.json",
     kCommon},
    {"init_from", kModelAndData, &Settings::init_from, AnyValue{},
     "Hugging Face directory, config.json and safetensors, whose model is "
     "trained from its weights; replaces --model. With --resume, a checkpoint "
     "has precedence. Empty: random weights",
     kCommon},
    {"data", kModelAndData, &Settings::data, AnyValue{},
     "comma-separated text files, JSON lines, directories, glob patterns and "
     "token files (.idx with .bin, .npy, .u16, .u32); with weights that add up "
     "to 1, such as books:0.7,web:0.3, a blend. Empty: the repository's own "
     "sources and documents",
     kCommon},
    {"tokenizer", kModelAndData, &Settings::tokenizer, AnyValue{},
     "tokenizer.json (Hugging Face) or tokenizer.model (SentencePiece), or the "
     "directory that holds it. Empty: the tokenizer of --model, or bytes if "
     "the model has none"},
    {"token_cache", kModelAndData, &Settings::token_cache, AnyValue{},
     "directory that caches the tokens of texts of at least 1 MiB. Empty: "
     "tessera/tokens in $XDG_CACHE_HOME or ~/.cache. off: no cache"},
    {"special_tokens", kModelAndData, &Settings::special_tokens,
     OneOf{"pairs, ids, text"},
     "where the tokenizer's special tokens, written out in the data, become "
     "ids: pairs, only in prompts and completions; ids, everywhere; "
     "text, nowhere"},
    {"mask_prompts", kModelAndData, &Settings::mask_prompts, AnyValue{},
     "excludes the prompts of JSON lines that have a prompt and a completion, "
     "and labels of -100, from the loss"},
    {"max_bad_lines", kModelAndData, &Settings::max_bad_lines,
     WholeRange{0, kMaxInt},
     "number of invalid lines of JSON in the data to skip; a line of the log "
     "counts them"},
    {"packing", kModelAndData, &Settings::packing, OneOf{"split, whole"},
     "how documents fill sequences: split, one after another, so that one may "
     "end in the next sequence; whole, unsplit and each learned as if it were "
     "alone (with --document_attention), with padding at the end of a "
     "sequence"},
    {"dtype", kModelAndData, Text{"dtype"}, AnyValue{},
     "type of weights and activations: fp32; bf16; fp16, which uses "
     "--loss_scale; or fp8, which is bf16 with the matrix products of the "
     "transformer layers in fp8. Not given: with --resume that of the "
     "checkpoint, with --init_from that of its config.json",
     kCommon},
    {"length", kModelAndData, &Settings::length,
     WholeRange{1, int64_t{1} << 31}, "tokens per sequence", kCommon},
    {"batch", kModelAndData, &Settings::batch, kPositive,
     "sequences per step, over all ranks", kCommon},
    {"batch_warmup", kModelAndData, &Settings::batch_warmup, AnyValue{},
     "FIRST:STEPS, such as 4:100: the batch grows in increments of FIRST "
     "sequences from FIRST to --batch during the first STEPS steps. Empty: the "
     "batch is constant"},
    {"micro_batch", kModelAndData, Number{"micro_batch"}, AnyValue{},
     "sequences that a rank processes at a time", kCommon},
    {"steps", kModelAndData, &Settings::steps, kPositive,
     "total number of training steps", kCommon},
    {"train_tokens", kModelAndData, &Settings::train_tokens, kCount,
     "total number of training tokens, rounded up to whole steps; replaces "
     "--steps. 0: use --steps"},
    {"seed", kModelAndData, &Settings::seed, WholeRange{0, kMaxInt},
     "random seed of the initial weights, the order of the data and the "
     "sampled text"},
    {"validation_fraction", kModelAndData, &Settings::validation_fraction,
     BelowOne("0.05"),
     "share of the data that is used for validation only; it lies before that "
     "of --test_fraction"},
    {"test_fraction", kModelAndData, &Settings::test_fraction, BelowOne("0.05"),
     "share of the data, at its end, on which the loss is measured after the "
     "last step"},
    {"eval_every", kModelAndData, &Settings::eval_every, kCount,
     "steps between validations; requires --validation_fraction. 0: no "
     "validation"},
    {"eval_batches", kModelAndData, &Settings::eval_batches, kPositive,
     "batches of --batch sequences per validation"},

    {"mesh", kParallelism, Text{"mesh"}, AnyValue{},
     "number of ranks along each axis: dp (or dp_replicate and dp_shard), pp, "
     "cp, tp and ep; 1 for an axis that is not given",
     kCommon},
    {"order", kParallelism, &Settings::order, AnyValue{},
     "axes in the order in which they number the ranks, fastest-varying first, "
     "such as tp-cp-dp-pp; auto: the order with the fastest communication on "
     "the hosts of the job"},
    {"engine", kParallelism, &Settings::engine,
     OneOf{"shared_memory, in_process, auto, mpi, gloo, nccl"},
     "communication engine: shared_memory, in_process, auto (several hosts: "
     "shared memory within, gloo between them), mpi, gloo, nccl"},
    {"encrypt_data", kParallelism, &Settings::encrypt_data, AnyValue{},
     "with --engine=auto or gloo, encrypts and authenticates the data between "
     "hosts, as does the environment variable TESSERA_ENCRYPT_DATA=1"},
    {"strategy", kParallelism, Text{"strategy"}, AnyValue{},
     "algorithm of collectives: ring, tree, hierarchical, adaptive, "
     "all_reduce"},
    {"schedule", kParallelism, Text{"schedule"}, AnyValue{},
     "pipeline schedule: 1f1b, gpipe, interleaved_1f1b, zb_h1, zb_v or another "
     "one of //tools/schedule; auto: synthesized for the model; or a CSV file",
     kCommon},
    {"chunks", kParallelism, Number{"chunks"}, AnyValue{},
     "pipeline stages per rank"},
    {"layers_per_stage", kParallelism, Text{"layers_per_stage"}, AnyValue{},
     "how the pipeline stages divide the layers: even; cost, which balances "
     "the computations with those of the head; or the layers of each stage, "
     "such as 3,5"},
    {"sequence_parallel", kParallelism, &Settings::sequence_parallel,
     AnyValue{},
     "shards the tokens over the tensor-parallel ranks between layers"},
    {"overlap_chunks", kParallelism, &Settings::overlap_chunks,
     WholeRange{0, 1024},
     "with --sequence_parallel, number of chunks in which linear layers "
     "overlap the exchange of tokens with their products. 0: no overlap"},
    {"context", kParallelism, &Settings::context, OneOf{"zigzag, contiguous"},
     "layout of positions over the context-parallel ranks: zigzag, contiguous"},
    {"context_attention", kParallelism, &Settings::context_attention,
     OneOf{"ring, ulysses"},
     "attention over the context-parallel ranks: ring, which passes keys and "
     "values around, or ulysses, which shards the heads by all-to-all"},

    {"zero", kStateAndMemory, &Settings::zero, WholeRange{0, 3},
     "ZeRO stage: 0 replicates all state; 1 shards the optimizer state over "
     "the data-parallel ranks; 2 also the gradients; 3 also the parameters",
     kCommon},
    {"layout", kStateAndMemory, &Settings::layout,
     OneOf{"chunks, round_robin, balanced"},
     "how sharded state is divided over the data-parallel ranks: chunks (every "
     "parameter evenly), round_robin (whole parameters by turns), or balanced "
     "(whole parameters, the heaviest first to the lightest rank)"},
    {"recompute", kStateAndMemory, &Settings::recompute,
     OneOf{"none, selective, full"},
     "activations that the backward pass recomputes: none, selective, full",
     kCommon},
    {"offload", kStateAndMemory, &Settings::offload, AnyValue{},
     "data kept outside of the memory of the rank's device: none, or a "
     "comma-separated list of optimizer, params, grads, all (the whole model "
     "state) and activations, such as all,activations",
     kCommon},
    {"offload_dir", kStateAndMemory, &Settings::offload_dir, AnyValue{},
     "directory for offloaded data; with --host_budget, for the data that "
     "exceeds it. Empty: host memory"},
    {"host_budget", kStateAndMemory,
     LimitField{"host_budget", &Settings::host_budget}, AnyValue{},
     "host memory per rank for offloaded data, such as 32GiB; more goes to "
     "--offload_dir, and without a directory fails the run. Empty: no limit"},
    {"pin_memory", kStateAndMemory, &Settings::pin_memory, AnyValue{},
     "page-locks --host_budget, so that GPUs copy from and to it at full "
     "speed"},
    {"offload_strategy", kStateAndMemory, &Settings::offload_strategy,
     OneOf{"conservative, balanced, aggressive, extreme"},
     "with --memory_limit, when freed memory is returned and offloaded data "
     "moves from --host_budget to --offload_dir, and how much of it: "
     "conservative (from 90 % of the limit, a fifth), balanced (75 %, half), "
     "aggressive (60 %, four fifths), extreme (40 %, all)"},
    {"compression", kStateAndMemory, &Settings::compression,
     OneOf{"none, fp16, bf16, int8, quantization, lossless"},
     "codec of offloaded data: none; lossless; or fp16, bf16, int8 and "
     "quantization, which round gradients and 16-bit parameters but never the "
     "optimizer state and activations"},
    {"moments", kStateAndMemory, &Settings::moments, OneOf{"f32, bf16, int8"},
     "type of the optimizer's moments: f32, bf16, or int8 (8 bits and one "
     "scale per block)"},
    {"speculative_bytes", kStateAndMemory, &Settings::speculative_bytes, kCount,
     "memory per rank for optimizer steps on the host that start before the "
     "gradient norm is known and are undone if it exceeds --clip_norm; the "
     "size of the optimizer state is sufficient. 0: no speculative steps"},
    {"bucket_bytes", kStateAndMemory, &Settings::bucket_bytes, kPositive,
     "maximum size of the messages into which the gradients of a layer are "
     "packed"},
    {"gather_ahead", kStateAndMemory, &Settings::gather_ahead,
     WholeRange{0, 1'000'000},
     "with --zero=3, number of layers whose weights are gathered before they "
     "are used"},
    {"max_gathered_bytes", kStateAndMemory, &Settings::max_gathered_bytes,
     kCount,
     "with --zero=3, limit for the memory of gathered weights, from which "
     "--gather_ahead is chosen. 0: no limit"},
    {"persistence_threshold", kStateAndMemory, &Settings::persistence_threshold,
     kCount,
     "with --zero=3, parameters with fewer elements than this are replicated "
     "on every rank"},
    {"reduce", kStateAndMemory, &Settings::reduce, OneOf{"auto, each, last"},
     "with --zero=2 and 3, when gradients are reduced: each (after each "
     "micro-batch; least memory), last (after the last micro-batch; least "
     "traffic), or auto"},
    {"quantized_weights", kStateAndMemory, &Settings::quantized_weights,
     AnyValue{},
     "gathers weights as int8 blocks (ZeRO++ qwZ); requires --zero=3"},
    {"quantized_gradients", kStateAndMemory, &Settings::quantized_gradients,
     AnyValue{},
     "reduces gradients as int8 blocks (ZeRO++ qgZ); requires --zero=1 or "
     "higher"},
    {"hpz_partition_size", kStateAndMemory, &Settings::hpz_partition_size,
     WholeRange{0, topology::MeshSizes::kMaxRanks},
     "number of adjacent ranks, such as those of one host, that share a second "
     "copy of the weights, from which all gathers except the first of a step "
     "read (ZeRO++ hpZ); requires --zero=3. 0: off"},

    {"optimizer", kOptimizer, &Settings::optimizer,
     OneOf{"adafactor, adamw, lion, muon, sgd, shampoo"},
     "adamw; adafactor, whose second moments are those of rows and columns, "
     "and whose steps are --learning_rate (or 1 / sqrt(step), if that is less) "
     "times the RMS of each matrix, so that 0.01 is usual; lion, which steps "
     "by the sign of its one moment and takes a "
     "learning rate 3 to 10 times smaller, and a weight decay as many times "
     "larger, than adamw; sgd with momentum; muon, which orthogonalizes the "
     "momentum of "
     "the attention, MLP and expert matrices by Newton-Schulz iterations and "
     "uses adamw for the other parameters; or shampoo, which preconditions the "
     "first moment of the same matrices by inverse roots of averages of their "
     "gradients' products, in steps as large as those of adamw, and uses adamw "
     "for the other parameters"},
    {"momentum", kOptimizer, &Settings::momentum, BelowOne("0.95"),
     "momentum of sgd and muon"},
    {"beta2_decay", kOptimizer, &Settings::beta2_decay,
     RealRange{.least = -1, .below = 0, .example = "-0.8"},
     "with --optimizer=adafactor, exponent c of the decay rate 1 - step^c of "
     "second moments"},
    {"update_threshold", kOptimizer, &Settings::update_threshold,
     RealRange{.least = 1, .below = 1e6, .example = "1"},
     "with --optimizer=adafactor, maximum RMS of a matrix's gradient divided "
     "by "
     "the root of its second moments; larger updates are scaled down to it"},
    {"shampoo_block", kOptimizer, &Settings::shampoo_block,
     WholeRange{1, int64_t{1} << 20},
     "with --optimizer=shampoo, maximum number of rows and of columns of a "
     "block of a matrix that is preconditioned separately"},
    {"shampoo_every", kOptimizer, &Settings::shampoo_every,
     WholeRange{1, int64_t{1} << 20},
     "with --optimizer=shampoo, steps from one computation of the inverse "
     "roots "
     "to the next"},
    {"shampoo_epsilon", kOptimizer, &Settings::shampoo_epsilon,
     RealRange{.least = 1e-8, .below = 1, .example = "1e-6"},
     "with --optimizer=shampoo, multiple of the norm of an average that is "
     "added "
     "to its diagonal before the root is computed"},
    {"param_groups", kOptimizer, &Settings::param_groups, AnyValue{},
     "parameters with their own learning rate or weight decay, as "
     "PATTERN:lr=FACTOR,decay=NUMBER separated by semicolons, such as "
     "'*norm*:decay=0;embedding.*:lr=0.1,decay=0'. lr multiplies "
     "--learning_rate, decay replaces --weight_decay and --decay; the first "
     "pattern that matches a parameter's name applies. Empty: none"},
    {"learning_rate", kOptimizer, &Settings::learning_rate, Positive("3e-3"),
     "peak learning rate", kCommon},
    {"min_learning_rate", kOptimizer, &Settings::min_learning_rate,
     NonNegativeOrDefault("3e-4"),
     "learning rate at the end of the schedule. -1: a tenth of "
     "--learning_rate"},
    {"lr_schedule", kOptimizer, &Settings::lr_schedule,
     OneOf{"cosine, linear, wsd, constant"},
     "learning rate after warm-up: cosine or linear decay to "
     "--min_learning_rate; wsd, which decays in the last --decay_steps only; "
     "or constant"},
    {"warmup_steps", kOptimizer, &Settings::warmup_steps, kCount,
     "steps of linear learning-rate warm-up"},
    {"warmup_tokens", kOptimizer, &Settings::warmup_tokens, kCount,
     "tokens of learning-rate warm-up, rounded up to whole steps; replaces "
     "--warmup_steps. 0: use --warmup_steps"},
    {"decay_steps", kOptimizer, &Settings::decay_steps,
     WholeRange{.most = kMany, .or_value = -1},
     "with --lr_schedule=wsd, number of last steps in which the learning rate "
     "decays to --min_learning_rate, as 1 - sqrt(progress). -1: a tenth of the "
     "steps"},
    {"weight_decay", kOptimizer, &Settings::weight_decay, NonNegative("0.1"),
     "decoupled weight decay"},
    {"decay", kOptimizer, &Settings::decay, OneOf{"matrices, all"},
     "parameters to which --weight_decay applies: matrices (weights of linear "
     "layers and embeddings), or all (also norms and biases)"},
    {"beta1", kOptimizer, &Settings::beta1, BelowOne("0.9"),
     "decay rate of AdamW's first moment; of Lion's direction"},
    {"beta2", kOptimizer, &Settings::beta2, BelowOne("0.95"),
     "decay rate of AdamW's second moment; of Lion's moment, often 0.99"},
    {"epsilon", kOptimizer, &Settings::epsilon, Positive("1e-8"),
     "epsilon of AdamW"},
    {"clip_norm", kOptimizer, &Settings::clip_norm, NonNegative("1"),
     "maximum gradient norm. 0: no clipping"},
    {"qk_clip", kOptimizer, &Settings::qk_clip, NonNegative("100"),
     "maximum score of attention before the softmax: after a step whose "
     "forwards exceeded it in a head, the weights of the head's queries and "
     "keys are scaled so that they would have reached it (QK-clip of MuonClip, "
     "Kimi K2). 0: off"},
    {"loss_scale", kOptimizer, &Settings::loss_scale,
     RealRange{.least = 1,
               .below = (int64_t{1} << 24) + 1,
               .example = "1024",
               .or_value = 0},
     "with --dtype=fp16, factor of the loss that keeps gradients from "
     "underflow. 0: dynamic; it starts at 65536, halves after each step whose "
     "gradients overflow, which is skipped, and doubles after "
     "--loss_scale_window steps without overflow"},
    {"loss_scale_window", kOptimizer, &Settings::loss_scale_window, kPositive,
     "number of steps without overflow after which a dynamic loss scale "
     "doubles"},
    {"max_skipped_steps", kOptimizer, &Settings::max_skipped_steps, kCount,
     "maximum number of consecutive steps skipped for infinite or NaN "
     "gradients; one more fails the run"},
    {"spike_factor", kOptimizer, &Settings::spike_factor, NonNegative("1.5"),
     "returns the run to the last checkpoint before a step whose loss exceeds "
     "this factor times the median of the last --spike_window losses, or is "
     "infinite or NaN, and skips the samples since then; such as 1.5; requires "
     "--checkpoint_every. 0: never"},
    // Each checkpoint stores the losses of the window.
    {"spike_window", kOptimizer, &Settings::spike_window, WholeRange{1, 1000},
     "with --spike_factor, number of losses whose median is the reference"},
    {"max_rollbacks", kOptimizer, &Settings::max_rollbacks,
     WholeRange{0, 1'000'000},
     "with --spike_factor, maximum number of rollbacks; one more spike fails "
     "the run"},
    {"lora_rank", kOptimizer, &Settings::lora_rank, WholeRange{0, 1 << 16},
     "rank of LoRA adapters, the only parameters that are then trained. 0: no "
     "adapters; all weights are trained"},
    {"lora_alpha", kOptimizer, &Settings::lora_alpha, Positive("16"),
     "with --lora_rank, alpha of the factor alpha / rank on the adapters' "
     "outputs"},
    {"lora_targets", kOptimizer, &Settings::lora_targets,
     OneOf{"attention, mlp, all"},
     "with --lora_rank, linear layers with adapters: attention, mlp, all"},
    {"base_weights", kOptimizer, &Settings::base_weights,
     OneOf{"full, nf4, nf4_double"},
     "with --lora_rank, how the frozen matrices of attention, MLPs and experts "
     "are held: full, in --dtype; nf4, in blocks of 64 numbers of 4 bits "
     "(QLoRA), which are decoded for each use; nf4_double, with the blocks' "
     "scales in 8 bits. Requires --zero=3"},

    {"objective", kLoss, &Settings::objective, OneOf{"lm, dpo"},
     "lm, the cross-entropy of the next token; or dpo, direct preference "
     "optimization, for --data of JSON lines with a prompt, a chosen and a "
     "rejected completion, each of which is a sequence of --batch",
     kCommon},
    {"dpo_beta", kLoss, &Settings::dpo_beta, Positive("0.1"),
     "with --objective=dpo, beta: the larger, the closer the model stays to "
     "the initial one"},
    {"document_attention", kLoss, &Settings::document_attention, AnyValue{},
     "tokens attend only to earlier tokens of the same document, not of the "
     "whole sequence"},
    {"dropout", kLoss, &Settings::dropout, BelowOne("0.1"),
     "dropout probability of the outputs of attention and MLP; every mesh "
     "drops the same elements"},
    {"label_smoothing", kLoss, &Settings::label_smoothing, BelowOne("0.1"),
     "share of each target's probability that is spread over the vocabulary "
     "in training, such as 0.1; not part of the printed losses"},
    {"z_loss", kLoss, &Settings::z_loss, NonNegative("1e-4"),
     "factor of the squared log-sum-exp of the logits, which is added to the "
     "training loss, such as 1e-4; not part of the printed losses"},
    {"expert_balance", kLoss, &Settings::expert_balance,
     NonNegativeOrDefault("0.01"),
     "factor of the load-balancing loss of mixtures of experts, such as 0.01; "
     "not part of the printed losses. -1: router_aux_loss_coef of the model"},
    {"router_z_loss", kLoss, &Settings::router_z_loss, NonNegative("1e-3"),
     "factor of the z-loss of the routers of mixtures of experts, such as "
     "1e-3"},
    {"expert_capacity", kLoss, &Settings::expert_capacity, NonNegative("1.25"),
     "maximum number of tokens of a micro-batch per expert, relative to their "
     "mean over the experts, such as 1.25; further tokens bypass the expert. "
     "Depends on the mesh. 0: no limit"},
    {"router_bias_rate", kLoss, &Settings::router_bias_rate,
     NonNegative("1e-3"),
     "for routers with sigmoid scores, change per step of the biases that "
     "balance the load of the experts; with --lora_rank they are frozen"},

    {"run_dir", kOutputs, &Settings::run_dir, AnyValue{},
     "directory for checkpoints, settings and logs. Empty: a new temporary "
     "directory",
     kCommon},
    {"checkpoint_every", kOutputs, &Settings::checkpoint_every, kCount,
     "steps between checkpoints. 0: one at the end", kCommon},
    {"keep_checkpoints", kOutputs, &Settings::keep_checkpoints, kCount,
     "number of most recent checkpoints to keep. 0: all"},
    {"keep_best", kOutputs, &Settings::keep_best, AnyValue{},
     "also writes and keeps the checkpoint with the lowest validation loss; "
     "requires --eval_every"},
    {"resume", kOutputs, &Settings::resume, AnyValue{},
     "checkpoint to continue from: a checkpoint, a directory of checkpoints, "
     "or latest or best (lowest validation loss) in --run_dir. Empty: a new "
     "run",
     kCommon},
    {"save_hf", kOutputs, &Settings::save_hf, AnyValue{},
     "new directory for the trained model in the format of Hugging Face, with "
     "the tokenizer; with --keep_best, its folder best has the model with the "
     "lowest validation loss. Weights have the type of --dtype. Empty: none",
     kCommon},
    {"metrics", kOutputs, &Settings::metrics, AnyValue{},
     "file with one JSON object per step, or CSV if its name ends in .csv",
     kCommon},
    {"tensorboard", kOutputs, &Settings::tensorboard, AnyValue{},
     "directory for TensorBoard event files"},
    {"html", kOutputs, &Settings::html, AnyValue{},
     "page with curves of loss, throughput, memory and time, the schedule and "
     "the settings; updated during the run; needs no network"},
    {"prometheus_file", kOutputs, &Settings::prometheus_file, AnyValue{},
     ".prom file on the host of rank 0 with the current metrics, for the "
     "textfile collector of Prometheus' node_exporter"},
    {"trace", kOutputs, &Settings::trace, AnyValue{},
     "trace file for Perfetto"},
    {"report", kOutputs, &Settings::report, AnyValue{},
     "prints the bottlenecks of the run, the flags that would remove them, and "
     "the measured messages beside the predicted ones"},
    {"sample_prompt", kOutputs, &Settings::sample_prompt, AnyValue{},
     "beginning of the text that is sampled after training"},
    {"sample_tokens", kOutputs, &Settings::sample_tokens,
     WholeRange{0, 1'000'000},
     "length of the sampled text in tokens. 0: no sample"},
    {"sample_temperature", kOutputs, &Settings::sample_temperature,
     NonNegative("0.8"),
     "sampling temperature. 0: always the most likely token"},
    {"format", kOutputs, &Settings::format, OneOf{"text, json"},
     "format of standard output: text, json"},
    {"quiet", kOutputs, &Settings::quiet, AnyValue{},
     "does not print the table of steps"},

    {"device", kExecution, &Settings::device, AnyValue{},
     "device of each rank: cpu; cuda, one GPU per rank; cuda:0,2, these GPUs; "
     "or emulated, an asynchronous device that checks whether the run is ready "
     "for GPUs. Empty: cuda if there are enough GPUs with enough memory, "
     "otherwise cpu",
     kCommon},
    {"threads", kExecution, &Settings::threads, WholeRange{1, 1024},
     "threads for computation per rank"},
    {"memory_limit", kExecution, Text{"memory_limit"}, AnyValue{},
     "memory limit for all ranks on this machine, such as 300MiB; the run "
     "trades speed for memory until it fits. With GPUs, the limit applies to "
     "host memory. Empty: no limit",
     kCommon},
    {"memory_strategy", kExecution, Text{"memory_strategy"}, AnyValue{},
     "strategy from which --memory_limit starts: basic, which changes no flag; "
     "standard, which recomputes activations; aggressive, which also shards "
     "all state and keeps it in host memory; extreme, which also moves state "
     "and activations to files"},
    {"device_budget", kExecution, Text{"device_budget"}, AnyValue{},
     "memory limit for the model state and activations of a rank on its "
     "device, without tensors that travel between pipeline stages, such as "
     "20GiB; a rank that needs more fails. Empty: no limit"},
    {"dry_run", kExecution, &Settings::dry_run, AnyValue{},
     "prints the mesh and the predicted memory, traffic and pipeline bubble "
     "without training; --device=cuda then requires no GPU",
     kCommon},
    {"verify", kExecution, &Settings::verify, AnyValue{},
     "repeats the steps on one rank and compares the losses"},
    {"time_limit", kExecution, &Settings::time_limit, AnyValue{},
     "time since the start of the command, such as that of a Slurm job, by "
     "which the run has ended with a checkpoint: it stops after a step when "
     "--grace_period is left; such as 90s, 1h30m or 1-12:00:00. Empty: no "
     "limit"},
    {"grace_period", kExecution, &Settings::grace_period, AnyValue{},
     "time after SIGTERM or SIGUSR1, and before --time_limit, in which the run "
     "finishes its step and writes a checkpoint; at its end, or at a second "
     "SIGTERM, the ranks are killed"},
    {"max_restarts", kExecution, &Settings::max_restarts,
     WholeRange{0, 1'000'000},
     "maximum number of restarts from the last checkpoint after the death of "
     "a rank, or with --snapshot_every of replacements of lost ranks"},
    {"snapshot_every", kExecution,
     AutomaticField{"snapshot_every", &Settings::snapshot_every}, kCount,
     "steps between copies of each rank's state in the memory of another rank, "
     "from which the run goes on after the loss of a rank: a new process "
     "replaces it, and the other ranks stay. Requires --max_restarts. auto: "
     "the number for which copies and repeated steps together cost least, by "
     "--mtbf and the cost of copies in the first steps, and at most 3 % of the "
     "time. 0: no copies"},
    {"mtbf", kExecution, &Settings::mtbf, AnyValue{},
     "mean time between failures of one rank, for --snapshot_every=auto; that "
     "of the run is shorter by the number of ranks. The default is that of a "
     "GPU with its share of a host and network (arXiv 2407.21783, section "
     "3.3.4)"},
    {"hang_timeout", kExecution, &Settings::hang_timeout, AnyValue{},
     "time without progress, or stopped by a signal, after which a rank is "
     "taken for hung: the places of all ranks are printed, and it is "
     "killed, or replaced with --snapshot_every. Empty: ten times the "
     "longest step so far, at least a minute, from the fourth step on; for "
     "a rank that is stopped 10s with --snapshot_every, otherwise no "
     "limit. A rank that does not answer others is replaced after twice "
     "--timeout_seconds"},
    {"min_dp", kExecution, &Settings::min_dp, kCount,
     "smallest size of the data axis with which a restart may go on: on one "
     "host it shrinks if ranks fail again and again, with --nnodes if a host "
     "is lost and none is in reserve. Batch and losses stay, up to rounding. "
     "Requires --max_restarts. 0: that of --mesh"},
    {"max_dp", kExecution, &Settings::max_dp, kCount,
     "largest size of the data axis, up to which it grows when hosts join, "
     "with --nnodes. 0: that of --mesh"},
    {"timeout_seconds", kExecution, Number{"timeout_seconds"}, AnyValue{},
     "number of seconds for which ranks wait for each other"},
    {"force", kExecution, &Settings::force, AnyValue{},
     "starts the run even if its predicted memory exceeds what is available on "
     "the host or on GPUs; GPU memory is then not reserved at the start"},
    {"deterministic", kExecution, &Settings::deterministic, AnyValue{},
     "on GPUs, makes equal runs produce equal bits, at the cost of memory and "
     "time in the backward pass of attention"},
    {"cuda_graphs", kExecution, &Settings::cuda_graphs, OneOf{"auto, on, off"},
     "captures the computations of a step and replays them as one operation, "
     "for small models on one GPU or emulated device without dropout and "
     "offload: on, off, or auto (on for GPUs and models below 200M "
     "parameters)"},
    {"device_seed", kExecution, &Settings::device_seed, WholeRange{0, kMaxInt},
     "random seed of the order in which an emulated device executes its work"},
};

// "must be ..." for a value that is outside of its range; empty otherwise.
std::string RangeError(std::string_view flag, int64_t value,
                       const WholeRange& range) {
  if (range.least <= value && value <= range.most) return "";
  if (range.or_value == value) return "";
  const bool is_low = value < range.least;
  const int64_t end = is_low ? range.least : range.most;
  return absl::StrCat(
      "must be at ", is_low ? "least " : "most ", end,
      range.or_value ? absl::StrCat(", or ", *range.or_value) : "",
      ", such as --", flag, "=", end);
}

std::string RangeError(std::string_view flag, double value,
                       const RealRange& range) {
  const bool is_above =
      range.with_least ? value >= range.least : value > range.least;
  if (std::isfinite(value) && is_above && value < range.below) return "";
  if (range.or_value == value) return "";
  return absl::StrCat(
      "must be ", range.with_least ? "at least " : "more than ", range.least,
      std::isfinite(range.below) ? absl::StrCat(" and below ", range.below)
                                 : " and finite",
      range.or_value ? absl::StrCat(", or ", *range.or_value) : "",
      ", such as --", flag, "=", range.example);
}

template <typename T>
std::string ValueText(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return absl::StrJoin(value, ",");
  } else {
    return absl::StrCat(value);
  }
}

}  // namespace

std::span<const SettingsField> SettingsFields() { return kFields; }

const SettingsField* FindSettingsField(std::string_view name) {
  const auto* const field =
      std::find_if(std::begin(kFields), std::end(kFields),
                   [&](const auto& one) { return one.name == name; });
  return field == std::end(kFields) ? nullptr : field;
}

std::string FieldText(std::string_view field, const Settings& settings) {
  return std::visit(
      [&](const auto& member) { return ValueText(GetField(member, settings)); },
      FindSettingsField(field)->member);
}

absl::Status SetField(const std::string& value, const LimitField& field,
                      Settings& settings) {
  TESSERA_ASSIGN_OR_RETURN(settings.*field.member, ParseByteLimit(value),
                           RefuseFlag(field.name, value,
                                      absl::StrCat(_.message(), ", such as --",
                                                   field.name, "=32GiB")));
  return absl::OkStatus();
}

absl::Status SetField(const std::string& value, const AutomaticField& field,
                      Settings& settings) {
  int64_t number = kAutomatic;
  if (value != "auto" && !absl::SimpleAtoi(value, &number)) {
    return RefuseFlag(
        field.name, value,
        absl::StrCat("expected a whole number or auto, such as --", field.name,
                     "=auto"));
  }
  settings.*field.member = number;
  return absl::OkStatus();
}

absl::Status CheckAllowed(const SettingsField& field,
                          const Settings& settings) {
  return std::visit(
      [&](const auto& member) -> absl::Status {
        const auto& value = GetField(member, settings);
        using T = std::decay_t<decltype(value)>;
        std::string error;
        if constexpr (std::is_same_v<decltype(member), const LimitField&>) {
          Settings parsed;
          return SetField(value, member, parsed);
        } else if constexpr (std::is_same_v<decltype(member),
                                            const AutomaticField&>) {
          const int64_t number = settings.*member.member;
          if (number != kAutomatic) {
            error = RangeError(field.name, number,
                               std::get<WholeRange>(field.allowed));
          }
        } else if constexpr (std::is_same_v<T, int64_t>) {
          if (const auto* range = std::get_if<WholeRange>(&field.allowed)) {
            error = RangeError(field.name, value, *range);
          }
        } else if constexpr (std::is_same_v<T, double>) {
          error =
              RangeError(field.name, value, std::get<RealRange>(field.allowed));
        } else if constexpr (std::is_same_v<T, std::string>) {
          if (const auto* names = std::get_if<OneOf>(&field.allowed)) {
            return CheckChoice(field.name, value,
                               absl::StrSplit(names->names, ", "));
          }
        }
        if (error.empty()) return absl::OkStatus();
        return RefuseFlag(field.name, ValueText(value), error);
      },
      field.member);
}

absl::Status FlagProblem(const topology::ConfigProblem& problem) {
  return RefuseFlag(
      problem.field, problem.given,
      absl::StrCat(problem.allowed, problem.fix.empty() ? "" : ", such as --",
                   problem.fix.empty() ? "" : problem.field,
                   problem.fix.empty() ? "" : "=", problem.fix));
}

absl::Status RefuseFlag(std::string_view flag, const absl::AlphaNum& value,
                        const absl::AlphaNum& why) {
  return tools::FlagError(flag, absl::CHexEscape(value.Piece()),
                          absl::InvalidArgumentError(why.Piece()));
}

}  // namespace tessera::train
