// The settings of a training run as a plain value, and their JSON files.
//
//   TESSERA_ASSIGN_OR_RETURN(const Settings settings,
//                            ReadSettings("run/config.json"));
//
// settings_table.h describes each field; settings_flags.h reads the command
// line; CheckSettings (check_settings.h) checks the values.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "tools/train/settings/batch_schedule.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

// The value of --order that selects the order automatically.
inline constexpr std::string_view kAutoOrder = "auto";

// A training run as its command line describes it. Each field has a flag and a
// JSON key of the same name; the values in `parallel` have their own flags.
struct Settings {
  // The model and the data.
  std::string model = "llama-1m";  // A preset, or a Hugging Face directory.
  // A Hugging Face directory whose weights the run starts with, which then is
  // `model`, too (FollowInitialModel). Empty: random weights.
  std::string init_from = "";
  // Text files, globs, directories, .u16 and .u32 files of tokens. Empty: the
  // repository's own sources and documents.
  std::vector<std::string> data = {};
  // A path for text::LoadTokenizer. Empty: the tokenizer of the model if it has
  // one; otherwise bytes are tokens.
  std::string tokenizer = "";
  // A directory that caches the tokens of texts. Empty: tessera/tokens in the
  // user's cache; "off": no cache.
  std::string token_cache = "";
  std::string special_tokens = "pairs";  // text::ParseSpecialTokens.
  bool mask_prompts = true;              // text::SamplesOptions.
  int64_t max_bad_lines = 0;
  std::string packing = "split";  // whole: text::SamplesOptions::document_end.
  int64_t length = 128;           // Tokens per sequence.
  int64_t batch = 16;             // Sequences per step, over all ranks.
  // "FIRST:STEPS": the batch grows from FIRST to `batch` in the first STEPS
  // steps. Empty: the batch is constant. See settings/batch_schedule.h.
  std::string batch_warmup = "";
  int64_t steps = 240;
  // If not 0, SettingsFlags::Read sets `steps` to StepsOfTokens.
  int64_t train_tokens = 0;
  int64_t seed = 1;
  // The share of the samples, taken from the end, that is used for validation
  // only.
  double validation_fraction = 0;
  // The share that is used only for a test after the last step.
  double test_fraction = 0;
  int64_t eval_every = 0;    // Steps; 0: no validation.
  int64_t eval_batches = 8;  // Batches of --batch sequences per validation.

  // The ranks. The fields of `parallel` (ParallelConfig::FieldNames) have flags
  // of their own, except for `layers`, which the model determines, and the
  // order of the mesh, which `order` replaces.
  topology::ParallelConfig parallel = {.mesh = {.dp = 2, .pp = 2, .tp = 2}};
  // The axes of the mesh joined by "-", fastest-varying first, or "auto". See
  // predict/choose_order.h.
  std::string order = "tp-cp-dp-pp";
  std::string engine = "shared_memory";
  bool encrypt_data = false;  // Between hosts.
  bool sequence_parallel = false;
  int64_t overlap_chunks = 0;      // With sequence_parallel; 0: no overlap.
  std::string context = "zigzag";  // zigzag, contiguous
  std::string context_attention = "ring";  // ring, ulysses
  std::string recompute = "none";          // none, selective, full

  // The state and its memory.
  int64_t zero = 3;
  std::string layout = "chunks";  // chunks, round_robin, balanced
  // "none", or a list of optimizer, params, grads, all and activations.
  std::string offload = "optimizer";
  std::string offload_dir = "";  // A directory; empty: host memory.
  // Maximum bytes that a rank keeps in host memory; 0: no limit. See
  // zero3/config/offload_config.h.
  ByteSize host_budget = {};
  bool pin_memory = false;
  // conservative, balanced, aggressive, extreme; see
  // offload/pressure/pressure_policy.h.
  std::string offload_strategy = "conservative";
  // none, lossless, fp16, bf16, int8, quantization; see TierCodecName.
  std::string compression = "none";
  std::string moments = "f32";  // f32, bf16, int8 (in blocks of 2048)
  // A rank's memory for undoing speculative optimizer steps; 0: no speculation.
  int64_t speculative_bytes = 0;
  int64_t bucket_bytes = 25'000'000;  // Gradients reduced together.
  int64_t gather_ahead = 1;           // Layers, at stage 3.
  int64_t max_gathered_bytes = 0;     // 0: no limit.
  // Elements, at stage 3. With the default, norms are not partitioned: a
  // message of 1 KB has the latency of a whole layer's message.
  int64_t persistence_threshold = 4096;
  std::string reduce = "auto";  // auto, each, last micro-batch.
  // ZeRO++: int8 gathers of weights (qwZ), int8 reductions of gradients (qgZ),
  // and the number of ranks that share a second copy of the weights (hpZ; 0: no
  // copy).
  bool quantized_weights = false;
  bool quantized_gradients = false;
  int64_t hpz_partition_size = 0;

  // The optimizer.
  std::string optimizer =
      "adamw";                // adafactor, adamw, lion, muon, sgd, shampoo
  double beta2_decay = -0.8;  // For adafactor, as update_threshold.
  double update_threshold = 1;
  double momentum = 0.95;        // For sgd and muon.
  int64_t shampoo_block = 1024;  // For shampoo, as the next two.
  int64_t shampoo_every = 10;
  double shampoo_epsilon = 1e-6;
  // zero3::ParseParameterGroups.
  std::string param_groups = "";
  // For fp16. 0: dynamic (zero3::LossScaler).
  double loss_scale = 0;
  int64_t loss_scale_window = 1000;
  // If above 0, only adapters of this rank are trained
  // (tensor_parallel/layers/lora.h).
  int64_t lora_rank = 0;
  double lora_alpha = 16;
  std::string lora_targets = "all";   // attention, mlp, all
  std::string base_weights = "full";  // full, nf4, nf4_double
  double learning_rate = 3e-3;
  double min_learning_rate = -1;  // -1: a tenth of learning_rate.
  // cosine, linear, wsd, constant; see settings/learning_rate.h.
  std::string lr_schedule = "cosine";
  int64_t warmup_steps = 20;
  int64_t warmup_tokens = 0;  // 0: warmup_steps.
  int64_t decay_steps = -1;   // For wsd; -1: a tenth of the steps.
  double weight_decay = 0.1;
  std::string decay = "matrices";  // matrices, all
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip_norm = 1;
  double qk_clip = 0;  // 0: off.
  // Maximum number of consecutive steps skipped for infinite or NaN gradients.
  int64_t max_skipped_steps = 0;
  // A loss above this factor times the median of the last spike_window losses
  // is a spike: the run returns to a checkpoint. 0: spikes are ignored. See
  // step/run_progress.h.
  double spike_factor = 0;
  int64_t spike_window = 32;  // Steps.
  int64_t max_rollbacks = 3;
  std::string objective = "lm";  // lm, dpo
  double dpo_beta = 0.1;
  bool document_attention = false;
  double dropout = 0;  // For the outputs of attention and MLP.
  // See tensor_parallel::LossTerms.
  double label_smoothing = 0;
  double z_loss = 0;
  // For mixtures of experts (settings/run_options.h); -1: the model's value.
  double expert_balance = -1;
  double router_z_loss = 0;
  double expert_capacity = 0;
  double router_bias_rate = 0.001;

  // The outputs.
  std::string run_dir = "";      // Empty: a new temporary directory.
  int64_t checkpoint_every = 0;  // Steps; 0: only at the end.
  int64_t keep_checkpoints = 2;  // The newest ones; 0: all.
  bool keep_best = false;  // Also keeps the one with the least validation loss.
  // A checkpoint, a directory of them, or "latest" or "best" (in run_dir).
  // Empty: a new run.
  std::string resume = "";
  // A new directory for the trained model in the format of Hugging Face.
  std::string save_hf = "";
  std::string metrics = "";  // A file with one JSON object per step; .csv: CSV.
  std::string tensorboard = "";  // A directory for TensorBoard's event files.
  std::string html = "";         // A page with curves of the metrics.
  std::string prometheus_file = "";  // For node_exporter's textfile collector.
  std::string trace = "";            // A file for Perfetto.
  std::string sample_prompt = "The ";
  int64_t sample_tokens = 200;  // 0: no sample.
  double sample_temperature = 0.8;

  // The execution.
  // Both are for ParseTimeSpan. The run ends --grace_period before the limit,
  // which counts from the start of the command; empty: no limit.
  std::string time_limit = "";
  std::string grace_period = "30s";  // For the checkpoint of a run that ends.
  int64_t max_restarts = 0;
  // Steps between copies of the state in the memory of other ranks, kAutomatic:
  // by loop/snapshot_pace.h; 0: none. See checkpoint/memory_copies.h.
  int64_t snapshot_every = 0;
  // For ParseTimeSpan: the mean time between failures of a rank.
  std::string mtbf = "50000h";
  // For ParseTimeSpan: how long a rank may show no progress or be stopped
  // before it is killed. Empty: HangDetector's default.
  std::string hang_timeout = "";
  // The sizes of the data axis with which a restart may go on; 0: that of the
  // mesh.
  int64_t min_dp = 0;
  int64_t max_dp = 0;
  // The device of each rank: cpu; emulated (base/device/emulated_device.h),
  // which executes its work in an order derived from device_seed; cuda, or
  // cuda:N for GPU N. Empty: GPUs if there are enough, otherwise cpu.
  std::string device = "";
  int64_t device_seed = 1;
  bool deterministic = true;  // On GPUs: equal runs give equal bits.
  // auto, on, off: whether the computations of a step are captured and replayed
  // as one device operation.
  std::string cuda_graphs = "off";
  int64_t threads = 1;  // Per rank, for computation.
  bool report = false;
  bool verify = false;
  bool dry_run = false;
  bool force = false;           // Start even if too little memory is predicted.
  std::string format = "text";  // Format of standard output: text, json.
  bool quiet = false;

  friend bool operator==(const Settings&, const Settings&) = default;
};

// The schedule of --batch and --batch_warmup. Without a warm-up if
// --batch_warmup is invalid.
BatchSchedule BatchScheduleOf(const Settings& settings);

// The number of steps that train on `tokens` tokens, rounded up. 0 if `tokens`,
// the batch or the length is not positive.
int64_t StepsOfTokens(int64_t tokens, const Settings& settings);

// Parses a positive, finite time: "90s", "1h30m" (absl::ParseDuration), or as
// Slurm prints it, [[DAYS-]HOURS:]MINUTES:SECONDS, such as "1-12:00:00".
// InvalidArgument for other text.
absl::StatusOr<absl::Duration> ParseTimeSpan(std::string_view text);

// The value of a number whose text is "auto". It is above all others, so that a
// number of what exists unless it is 0 needs no other check.
inline constexpr int64_t kAutomatic = std::numeric_limits<int64_t>::max();

// The maximum size of settings as JSON.
inline constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

// Parses settings from one flat JSON object (RFC 8259) with a key per field.
// Missing keys keep their defaults.
//
//   {"mesh": "dp2,tp2", "data": ["docs", "more.u16"], "steps": 1000}
//
// InvalidArgument if the text is not a JSON object, is too long or nested, a
// key is unknown (the error suggests the nearest one) or duplicate, or a value
// has the wrong type or does not parse ("mesh": "dp0"). CheckSettings checks
// whether the values are valid.
absl::StatusOr<Settings> ParseSettings(std::string_view json);

// Formats every field, one per line. ParseSettings restores the settings
// exactly (timeouts in whole seconds). InvalidArgument, with the key, for
// values that JSON cannot represent (infinite or NaN numbers, invalid UTF-8),
// and if the result is longer than kMaxSettingsBytes.
absl::StatusOr<std::string> FormatSettings(const Settings& settings);

// Read and write settings as a file. Errors name the file. Writing replaces the
// file atomically.
absl::StatusOr<Settings> ReadSettings(const std::string& path);
absl::Status WriteSettings(const Settings& settings, const std::string& path);

// The value of --dtype: "fp32", "bf16", "fp16" or "fp8".
std::string_view DTypeFlag(const topology::ParallelConfig& parallel);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_
