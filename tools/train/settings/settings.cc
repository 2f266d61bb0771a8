#include "tools/train/settings/settings.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <variant>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/nearest_name.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/train/settings/flag_checks.h"
#include "topology/config/named_enum.h"

namespace tessera::train {

std::string_view DTypeFlag(const topology::ParallelConfig& parallel) {
  return parallel.fp8 ? "fp8" : topology::EnumName(parallel.dtype);
}

std::string UserPath(std::string_view path) {
  const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || *directory == '\0' || path.empty() ||
      absl::StartsWith(path, "/")) {
    return std::string(path);
  }
  return absl::StrCat(directory, "/", path);
}

int64_t StepsOfTokens(int64_t tokens, const Settings& settings) {
  if (tokens <= 0 || settings.batch <= 0 || settings.length <= 0) return 0;
  const absl::int128 samples =
      (absl::int128(tokens) + settings.length - 1) / settings.length;
  return BatchScheduleOf(settings).StepsOf(static_cast<int64_t>(samples));
}

BatchSchedule BatchScheduleOf(const Settings& settings) {
  const BatchSchedule constant = {.batch = settings.batch};
  const auto warmup = ParseBatchWarmup(settings.batch_warmup);
  if (!warmup || settings.batch % warmup->first != 0 ||
      settings.batch / warmup->first > BatchSchedule::kMostSizes) {
    return constant;
  }
  return {.batch = settings.batch,
          .first = warmup->first,
          .warmup_steps = warmup->steps};
}

namespace {

using topology::ParallelConfig;

std::vector<std::string_view> Names(const auto& table) {
  std::vector<std::string_view> names;
  for (const auto& entry : table) names.push_back(entry.name);
  return names;
}

// A field of ParallelConfig that needs no conversion.
template <auto member, typename T>
constexpr ParallelField<T> Plain() {
  return {[](const ParallelConfig& parallel) { return parallel.*member; },
          [](const T& value, ParallelConfig& parallel) {
            parallel.*member = value;
            return absl::OkStatus();
          }};
}

// Sets an enum of topology by name.
template <typename Enum>
absl::Status SetNamed(std::string_view flag, const std::string& name,
                      Enum& value) {
  TESSERA_RETURN_IF_ERROR(
      CheckChoice(flag, name, Names(topology::EnumNames<Enum>::kTable)));
  TESSERA_ASSIGN_OR_RETURN(value, topology::ParseEnum<Enum>(name));
  return absl::OkStatus();
}

constexpr ParallelField<std::string> kDType = {
    [](const ParallelConfig& parallel) {
      return std::string(DTypeFlag(parallel));
    },
    [](const std::string& text, ParallelConfig& parallel) {
      constexpr std::string_view kNames[] = {"fp32", "bf16", "fp16", "fp8"};
      TESSERA_RETURN_IF_ERROR(CheckChoice("dtype", text, kNames));
      parallel.fp8 = text == "fp8";
      parallel.dtype = text == "fp32"   ? DType::kF32
                       : text == "fp16" ? DType::kF16
                                        : DType::kBF16;
      return absl::OkStatus();
    }};

constexpr ParallelField<std::string> kStrategy = {
    [](const ParallelConfig& parallel) {
      return std::string(topology::EnumName(parallel.strategy));
    },
    [](const std::string& text, ParallelConfig& parallel) {
      return SetNamed("strategy", text, parallel.strategy);
    }};

constexpr ParallelField<std::string> kMesh = {
    [](const ParallelConfig& parallel) { return parallel.mesh.ToFlag(); },
    [](const std::string& text, ParallelConfig& parallel) {
      const auto mesh = topology::MeshSizes::Parse(text);
      if (!mesh.ok()) {
        return RefuseFlag(
            "mesh", text,
            absl::StrCat(mesh.status().message(),
                         "; give for example --mesh=dp2,pp2,tp2"));
      }
      parallel.mesh = *mesh;
      return absl::OkStatus();
    }};

constexpr ParallelField<std::string> kMemoryLimit = {
    [](const ParallelConfig& parallel) {
      return parallel.memory_limit == ByteSize()
                 ? std::string()
                 : parallel.memory_limit.ToString();
    },
    [](const std::string& text, ParallelConfig& parallel) {
      const absl::StatusOr<ByteSize> limit =
          text.empty() ? ByteSize() : ParseByteSize(text);
      if (!limit.ok() || (!text.empty() && limit->bytes() == 0)) {
        return RefuseFlag(
            "memory_limit", text,
            "must be a number of bytes above 0, such as --memory_limit=300MiB");
      }
      parallel.memory_limit = *limit;
      return absl::OkStatus();
    }};

constexpr ParallelField<int64_t> kTimeoutSeconds = {
    [](const ParallelConfig& parallel) {
      return absl::ToInt64Seconds(parallel.timeout);
    },
    [](const int64_t& seconds, ParallelConfig& parallel) {
      parallel.timeout = absl::Seconds(seconds);
      return absl::OkStatus();
    }};

constexpr SettingsField kFields[] = {
    {"model", &Settings::model,
     "a preset, llama-1m to llama-70b, or a directory with a Hugging Face "
     "config.json"},
    {"data", &Settings::data,
     "text files, .jsonl, directories, patterns, and tokens (.idx with .bin, "
     ".npy, .u16, .u32), separated by commas; with weights that add up to 1, "
     "such as books:0.7,web:0.3, a blend; empty: the repository's own sources "
     "and documents"},
    {"tokenizer", &Settings::tokenizer,
     "a directory with a tokenizer.json (Hugging Face) or tokenizer.model "
     "(SentencePiece), or the file; empty: --model's if it has one, else "
     "bytes"},
    {"token_cache", &Settings::token_cache,
     "directory that keeps the tokens of texts of 1 MiB and more that "
     "--tokenizer made, for later runs; empty: tessera/tokens in "
     "$XDG_CACHE_HOME or ~/.cache; off: none"},
    {"mask_prompts", &Settings::mask_prompts,
     "of lines with prompt and completion in .jsonl, only the completion is "
     "learned and in the losses; false: the prompt too"},
    {"dtype", kDType,
     "type of weights and activations: fp32, bf16; fp16, with a --loss_scale; "
     "fp8: bf16, and the products "
     "of transformer layers in fp8"},
    {"length", &Settings::length, "tokens per sequence"},
    {"batch", &Settings::batch, "sequences per step, over all ranks"},
    {"batch_warmup", &Settings::batch_warmup,
     "FIRST:STEPS, such as 4:100: the batch grows from FIRST sequences to "
     "--batch over the first STEPS steps, by FIRST at a time; empty: no "
     "warm-up"},
    {"micro_batch", Plain<&ParallelConfig::micro_batch, int64_t>(),
     "sequences that a rank computes with at a time"},
    {"steps", &Settings::steps, "steps of the whole run"},
    {"train_tokens", &Settings::train_tokens,
     "tokens of the whole run, instead of --steps, rounded up to whole steps; "
     "0: --steps"},
    {"seed", &Settings::seed,
     "seed of the initial weights, the order of the data and the sample"},
    {"validation_fraction", &Settings::validation_fraction,
     "share of the data, its end, that is kept for validation and not trained "
     "on"},
    {"test_fraction", &Settings::test_fraction,
     "share of the data after that of validation, its end, whose loss is "
     "measured after the last step"},
    {"eval_every", &Settings::eval_every,
     "steps from one validation to the next; 0: none; needs "
     "--validation_fraction"},
    {"eval_batches", &Settings::eval_batches,
     "batches of --batch sequences in each validation"},

    {"mesh", kMesh,
     "ranks along the axes dp (or dp_replicate and dp_shard), pp, cp and tp; "
     "an axis that is not named has 1"},
    {"order", &Settings::order,
     "order in which the axes number the ranks, fastest-varying first, such as "
     "tp-cp-dp-pp; auto: the order that communicates fastest on the job's "
     "hosts"},
    {"engine", &Settings::engine,
     "communication engine: in_process, shared_memory, mpi, gloo, nccl"},
    {"strategy", kStrategy,
     "algorithm of collectives: ring, tree, hierarchical, adaptive, "
     "all_reduce"},
    {"schedule", Plain<&ParallelConfig::schedule, std::string>(),
     "pipeline schedule: 1f1b, gpipe, interleaved_1f1b, zb_h1, zb_v and more "
     "(see //tools/schedule), auto (synthesized for the model), or a CSV file"},
    {"chunks", Plain<&ParallelConfig::chunks, int64_t>(),
     "stages of each pipeline rank"},
    {"sequence_parallel", &Settings::sequence_parallel,
     "splits the tokens over tensor ranks between layers"},
    {"overlap_chunks", &Settings::overlap_chunks,
     "with --sequence_parallel, chunks in which linear layers gather and "
     "scatter tokens while they multiply others; 0: all at once"},
    {"context", &Settings::context,
     "layout of positions over context ranks: zigzag, contiguous"},
    {"context_attention", &Settings::context_attention,
     "attention over context ranks: ring (keys and values go round), ulysses "
     "(all-to-all; each rank attends with some of the heads)"},
    {"recompute", &Settings::recompute,
     "activations that the backward recomputes: none, selective, full"},

    {"zero", &Settings::zero,
     "ZeRO stage; data ranks partition: 0 nothing, 1 optimizer state, 2 also "
     "gradients, 3 also parameters"},
    {"offload", &Settings::offload,
     "data kept outside of the rank's own memory: none, or any of optimizer, "
     "params, all (of the model's state) and activations, such as "
     "all,activations"},
    {"offload_dir", &Settings::offload_dir,
     "a directory for offloaded data; empty: host memory"},
    {"compression", &Settings::compression,
     "codec for offloaded data: none, lossless; fp16, bf16, int8 and "
     "quantization round gradients and 16-bit parameters, never the "
     "optimizer's state and activations"},
    {"moments", &Settings::moments,
     "type of the optimizer's moments: f32, bf16, int8 (8 bits and a scale "
     "for each block)"},
    {"speculative_bytes", &Settings::speculative_bytes,
     "with the optimizer's state in host memory and a device: a rank's memory "
     "for optimizer steps that begin before the gradient norm is known, and "
     "are undone if it clips; the state's size is enough; 0: none"},
    {"bucket_bytes", &Settings::bucket_bytes,
     "bytes of gradients of a layer that are packed into one message"},
    {"gather_ahead", &Settings::gather_ahead,
     "with --zero=3, layers whose weights are gathered ahead of their use"},
    {"max_gathered_bytes", &Settings::max_gathered_bytes,
     "with --zero=3, limit of bytes of gathered weights; --gather_ahead is "
     "then chosen; 0: no limit"},
    {"persistence_threshold", &Settings::persistence_threshold,
     "with --zero=3, parameters with fewer elements stay whole on every rank"},
    {"reduce", &Settings::reduce,
     "with --zero=2 and 3, when a layer's gradients are reduced: after each "
     "micro-batch (each: least memory), after the last one (last: least "
     "traffic), or auto"},
    {"quantized_weights", &Settings::quantized_weights,
     "gathers weights as int8 blocks (ZeRO++ qwZ); needs --zero=3"},
    {"quantized_gradients", &Settings::quantized_gradients,
     "reduces gradients as int8 blocks (ZeRO++ qgZ); needs --zero=1 or more"},
    {"hpz_partition_size", &Settings::hpz_partition_size,
     "number of adjacent ranks, such as those of a host, that share a second "
     "copy of the weights, used by all gathers of a step except the first "
     "(ZeRO++ hpZ); 0: off; needs --zero=3"},

    {"optimizer", &Settings::optimizer,
     "adamw; sgd (with momentum); or muon: Newton-Schulz iterations on the "
     "momentum of attention, MLP and expert matrices, whole and on the device, "
     "and adamw for all else"},
    {"momentum", &Settings::momentum, "momentum of sgd and muon"},
    {"loss_scale", &Settings::loss_scale,
     "with --dtype=fp16, factor on the loss that keeps gradients from "
     "underflow; 0: dynamic, from 65536: it halves after a step whose "
     "gradients "
     "overflow, which is skipped, and doubles after --loss_scale_window steps"},
    {"loss_scale_window", &Settings::loss_scale_window,
     "steps without overflow after which a dynamic --loss_scale doubles"},
    {"lora_rank", &Settings::lora_rank,
     "rank of LoRA adapters, which are then all that is trained; 0: all "
     "weights "
     "are"},
    {"lora_alpha", &Settings::lora_alpha,
     "with --lora_rank, the adapters' outputs are multiplied by alpha / rank"},
    {"lora_targets", &Settings::lora_targets,
     "with --lora_rank, linear layers that have adapters: attention, mlp, all"},
    {"learning_rate", &Settings::learning_rate, "peak learning rate"},
    {"min_learning_rate", &Settings::min_learning_rate,
     "learning rate at the end of the schedule; -1: a tenth of "
     "--learning_rate"},
    {"lr_schedule", &Settings::lr_schedule,
     "learning rate after warm-up: cosine, linear (both down to "
     "--min_learning_rate), wsd (the peak, which decays in the last "
     "--decay_steps), constant"},
    {"warmup_steps", &Settings::warmup_steps,
     "steps of linear warm-up of the learning rate"},
    {"warmup_tokens", &Settings::warmup_tokens,
     "tokens of warm-up, instead of --warmup_steps, rounded up to whole steps; "
     "0: --warmup_steps"},
    {"decay_steps", &Settings::decay_steps,
     "with --lr_schedule=wsd, last steps in which the learning rate decays to "
     "--min_learning_rate, by one minus the square root of their share; -1: a "
     "tenth of the steps"},
    {"weight_decay", &Settings::weight_decay, "decoupled weight decay"},
    {"decay", &Settings::decay,
     "parameters that --weight_decay applies to: matrices (weights of layers "
     "and embeddings, not of norms, and no biases), all"},
    {"beta1", &Settings::beta1, "AdamW's decay rate of the first moment"},
    {"beta2", &Settings::beta2, "AdamW's decay rate of the second moment"},
    {"epsilon", &Settings::epsilon, "AdamW's epsilon"},
    {"clip_norm", &Settings::clip_norm,
     "limit of the gradient norm; 0: no clipping"},
    {"max_skipped_steps", &Settings::max_skipped_steps,
     "steps in a row that may be skipped because gradients are infinite or "
     "NaN; one more fails the run"},
    {"spike_factor", &Settings::spike_factor,
     "a step whose loss is more than this factor times the median of the last "
     "--spike_window ones, or is infinite or NaN, takes the run back to the "
     "last checkpoint before the spike, and the samples since then are left "
     "out; such as 1.5; 0: never; needs --checkpoint_every"},
    {"spike_window", &Settings::spike_window,
     "with --spike_factor, steps whose median loss is the usual one"},
    {"max_rollbacks", &Settings::max_rollbacks,
     "with --spike_factor, how often a run may go back; one more spike fails "
     "it"},
    {"document_attention", &Settings::document_attention,
     "tokens attend only to earlier ones of their own document, instead of all "
     "earlier ones of the sequence"},
    {"dropout", &Settings::dropout,
     "probability with which elements of the outputs of attention and MLP are "
     "dropped; the same ones on every mesh"},
    {"label_smoothing", &Settings::label_smoothing,
     "share of each target's probability that training spreads evenly over the "
     "vocabulary, such as 0.1; printed losses are without it"},
    {"z_loss", &Settings::z_loss,
     "factor of the squared logarithm of the softmax's sum of exponentials, "
     "which training minimises too, such as 1e-4; printed losses are without "
     "it"},
    {"expert_balance", &Settings::expert_balance,
     "factor of the term that spreads the tokens of a sequence over the "
     "experts "
     "of a mixture, such as 0.01; -1: router_aux_loss_coef of the model; "
     "printed losses are without it"},
    {"router_z_loss", &Settings::router_z_loss,
     "the same as --z_loss for the routers of a mixture of experts, such as "
     "1e-3"},
    {"expert_capacity", &Settings::expert_capacity,
     "most tokens of a micro-batch that an expert takes, relative to their "
     "mean "
     "over the experts, such as 1.25; the rest pass by. Depends on the mesh; "
     "0: "
     "no limit, nothing is dropped"},
    {"router_bias_rate", &Settings::router_bias_rate,
     "where a router's scores are sigmoids, the step by which the biases that "
     "spread tokens over experts move after a step"},

    {"run_dir", &Settings::run_dir,
     "a directory for checkpoints, settings and logs; empty: a new temporary "
     "directory"},
    {"checkpoint_every", &Settings::checkpoint_every,
     "steps from one checkpoint to the next; 0: one at the end"},
    {"keep_checkpoints", &Settings::keep_checkpoints,
     "number of newest checkpoints to keep; 0: all"},
    {"keep_best", &Settings::keep_best,
     "writes a checkpoint after each validation with the least loss so far, "
     "and keeps the best one besides the newest; needs --eval_every"},
    {"resume", &Settings::resume,
     "a checkpoint, a directory of them, latest (in --run_dir), or best (that "
     "of --run_dir with the least validation loss); empty: a new run"},
    {"metrics", &Settings::metrics,
     "a file with one JSON object per step, or if its name ends in .csv one "
     "line of CSV"},
    {"tensorboard", &Settings::tensorboard,
     "a directory for event files that TensorBoard shows"},
    {"html", &Settings::html,
     "a page with curves of loss, throughput, memory and shares of time, the "
     "schedule and the settings, which is written again while the run goes on; "
     "it needs no network"},
    {"prometheus_file", &Settings::prometheus_file,
     "a file whose name ends in .prom, on rank 0's host, with the newest "
     "metrics for the textfile collector of Prometheus' node_exporter"},
    {"trace", &Settings::trace, "a file for Perfetto"},
    {"sample_prompt", &Settings::sample_prompt,
     "beginning of the text sample after training"},
    {"sample_tokens", &Settings::sample_tokens,
     "length of the sample in tokens; 0: no sample"},
    {"sample_temperature", &Settings::sample_temperature,
     "temperature of the sample; 0: always the most likely token"},

    {"max_restarts", &Settings::max_restarts,
     "number of restarts from the last checkpoint after a rank dies"},
    {"elastic", &Settings::elastic,
     "restarts with fewer data-parallel ranks if ranks are lost"},
    {"timeout_seconds", kTimeoutSeconds,
     "seconds that ranks wait for each other"},
    {"device", &Settings::device,
     "where each rank computes: cpu; cuda, a GPU for each rank; cuda:0,2, "
     "these GPUs; "
     "emulated, a check that the run is ready for GPUs: late work in any legal "
     "order, on memory that the host cannot touch; empty: cuda if there are "
     "enough usable GPUs with enough memory, else cpu"},
    {"device_seed", &Settings::device_seed,
     "seed of the order in which an emulated device does its work"},
    {"deterministic", &Settings::deterministic,
     "on GPUs: equal runs give equal bits, for which the backward of attention "
     "needs more memory and time"},
    {"cuda_graphs", &Settings::cuda_graphs,
     "the computations of a step are captured and then replayed as one "
     "operation, for small models on one GPU or emulated device, without "
     "dropout and offload: on, off, or auto (GPUs and models below 200M "
     "parameters)"},
    {"threads", &Settings::threads, "threads of each rank's computation"},
    {"memory_limit", kMemoryLimit,
     "memory limit for all ranks on this machine, such as 300MiB: the run "
     "trades speed for memory until it fits; with GPUs of the host's memory, "
     "which does not include theirs; empty: no limit"},
    {"report", &Settings::report,
     "prints bottlenecks and which flags to change"},
    {"verify", &Settings::verify,
     "repeats the steps on one rank and compares the losses"},
    {"dry_run", &Settings::dry_run,
     "prints mesh, memory, traffic and bubble, and does not train; with "
     "--device=cuda also on a machine without a GPU"},
    {"force", &Settings::force,
     "starts a run even if it is predicted to need more memory than available, "
     "on the host or on GPUs, whose memory is then not taken at the start"},
    {"format", &Settings::format, "format of standard output: text, json"},
    {"quiet", &Settings::quiet, "prints no table of steps"},
};

}  // namespace

std::span<const SettingsField> SettingsFields() { return kFields; }

const SettingsField* FindSettingsField(std::string_view name) {
  for (const SettingsField& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

namespace {

using Json = nlohmann::json;

absl::Status Expected(std::string_view what, const Json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", what, ", found ", DescribeJson(found)));
}

absl::Status Read(const Json& json, bool& value) {
  if (!json.is_boolean()) return Expected("true or false", json);
  value = json.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, int64_t& value) {
  const std::optional<int64_t> number = JsonInteger(json);
  if (!number) return Expected("a whole number, -2^63 to 2^63-1", json);
  value = *number;
  return absl::OkStatus();
}

absl::Status Read(const Json& json, double& value) {
  if (!json.is_number()) return Expected("a number", json);
  value = json.get<double>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, std::string& value) {
  if (!json.is_string()) return Expected("a text in quotes", json);
  value = json.get<std::string>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, std::vector<std::string>& value) {
  constexpr std::string_view kWhat = "a list of texts such as [\"docs\"]";
  if (!json.is_array()) return Expected(kWhat, json);
  value.clear();
  for (const Json& item : json) {
    if (!item.is_string()) return Expected(kWhat, item);
    value.push_back(item.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status UnknownKey(std::string_view key) {
  std::vector<std::string_view> names;
  for (const SettingsField& field : SettingsFields()) {
    names.push_back(field.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown key ", Quoted(key), "; the nearest there is: \"",
                   NearestName(key, names), "\""));
}

absl::Status CheckFinite(double value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(value, " cannot be written as JSON; give a finite number"));
}

absl::Status ReadField(const Json& json, const SettingsField& field,
                       Settings& settings) {
  return std::visit(
      [&](const auto& member) -> absl::Status {
        auto given = GetField(member, settings);
        TESSERA_RETURN_IF_ERROR(Read(json, given));
        return SetField(given, member, settings);
      },
      field.member);
}

absl::StatusOr<Settings> SettingsOf(const Json& document) {
  if (!document.is_object()) {
    return Expected("an object such as {\"steps\": 100}", document);
  }
  Settings settings;
  for (const auto& [key, value] : document.items()) {
    // Runs of earlier versions have this key; 0 was no port.
    if (key == "prometheus_port" && value == 0) continue;
    const SettingsField* field = FindSettingsField(key);
    if (field == nullptr) return UnknownKey(key);
    TESSERA_RETURN_IF_ERROR(
        ReadField(value, *field, settings),
        Annotate(_, absl::StrCat("key \"", field->name, "\"")));
  }
  return settings;
}

// Formats one field. InvalidArgument if JSON cannot represent it.
absl::StatusOr<std::string> FormatField(const SettingsField& field,
                                        const Settings& settings) {
  if (const auto* member = std::get_if<double Settings::*>(&field.member)) {
    TESSERA_RETURN_IF_ERROR(CheckFinite(settings.**member));
  }
  const Json value = std::visit(
      [&](const auto& member) { return Json(GetField(member, settings)); },
      field.member);
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (Json::parse(text) == value) return text;
  return absl::InvalidArgumentError(absl::StrCat(
      "text that is not UTF-8 cannot be written as JSON: ",
      value.is_string() ? Quoted(value.get_ref<const std::string&>())
                        : std::string("one of a list")));
}

}  // namespace

absl::StatusOr<Settings> ParseSettings(std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(
      const Json document,
      ParseJson(json, {.max_bytes = kMaxSettingsBytes, .max_depth = 2}),
      Annotate(_, "settings"));
  TESSERA_ASSIGN_OR_RETURN(Settings settings, SettingsOf(document),
                           Annotate(_, "settings"));
  return settings;
}

absl::StatusOr<std::string> FormatSettings(const Settings& settings) {
  std::string text = "{";
  for (const SettingsField& field : SettingsFields()) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string value, FormatField(field, settings),
        Annotate(_, absl::StrCat("key \"", field.name, "\"")));
    absl::StrAppend(&text, text.size() > 1 ? "," : "", "\n  \"", field.name,
                    "\": ", value);
  }
  text += "\n}\n";
  if (text.size() <= kMaxSettingsBytes) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("settings of ", text.size(), " bytes of JSON; at most ",
                   kMaxSettingsBytes, " are allowed"));
}

absl::StatusOr<Settings> ReadSettings(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(path, static_cast<int64_t>(kMaxSettingsBytes)));
  TESSERA_ASSIGN_OR_RETURN(Settings settings, ParseSettings(text),
                           Annotate(_, QuotedPath(path)));
  return settings;
}

absl::Status WriteSettings(const Settings& settings, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, FormatSettings(settings),
                           Annotate(_, QuotedPath(path)));
  return WriteFile(path, text);
}

}  // namespace tessera::train
