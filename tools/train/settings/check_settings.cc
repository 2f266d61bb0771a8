#include "tools/train/settings/check_settings.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "offload/tier/accounting.h"
#include "pipeline/generate/generate.h"
#include "tools/cli/cli.h"
#include "tools/train/settings/batch_schedule.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/settings_table.h"
#include "topology/config/parallel_config.h"
#include "topology/config/strategies.h"
#include "topology/device_mesh.h"
#include "zero3/parameters/parameter_groups.h"

namespace tessera::train {
namespace {

using topology::MeshSizes;

// Returns InvalidArgument about a field's value.
template <typename... Parts>
absl::Status Refuse(const Settings& settings, std::string_view flag,
                    const Parts&... why) {
  return RefuseFlag(flag, FieldText(flag, settings), absl::StrCat(why...));
}

bool OffloadsOptimizer(const Settings& s) {
  return OffloadChoice::Of(s.offload).optimizer;
}

bool IsAdafactor(const Settings& s) { return s.optimizer == "adafactor"; }
bool IsShampoo(const Settings& s) { return s.optimizer == "shampoo"; }

// True unless --cuda_graphs=on demands what auto only does where it is
// possible.
bool MayDecline(const Settings& s) { return s.cuda_graphs != "on"; }

// A rule for a setting that differs from its default.
struct Rule {
  std::string_view flag;
  bool (*holds)(const Settings& s);
  std::string_view otherwise;  // The error message.
};

constexpr Rule kRules[] = {
    {"eval_every", [](auto& s) { return s.validation_fraction > 0; },
     "requires validation data; use for example --validation_fraction=0.05"},

    {"encrypt_data",
     [](auto& s) { return s.engine == "auto" || s.engine == "gloo"; },
     "encrypts the connections of Gloo; use --engine=auto"},
    {"context_attention", [](auto& s) { return s.parallel.mesh.cp > 1; },
     "has no effect with cp 1, where every rank holds whole sequences; use for "
     "example --mesh=cp2"},
    {"layers_per_stage",
     [](auto& s) { return !IsScheduleFile(s.parallel.schedule); },
     "has no effect with a schedule from a file, whose stages have equal "
     "numbers of layers; use --layers_per_stage=even"},
    {"overlap_chunks", [](auto& s) { return s.parallel.mesh.tp > 1; },
     "has no effect with tp 1, where tensor-parallel ranks exchange no tokens; "
     "use for example --mesh=tp2"},
    {"overlap_chunks", [](auto& s) { return s.sequence_parallel; },
     "requires sequence parallelism; add --sequence_parallel"},

    {"reduce", [](auto& s) { return s.zero >= 2; },
     "has no effect with --zero=0 and 1; use for example --zero=2"},
    {"gather_ahead", [](auto& s) { return s.zero == 3; },
     "has no effect without sharded weights; use --zero=3"},
    {"max_gathered_bytes", [](auto& s) { return s.zero == 3; },
     "has no effect without sharded weights; use --zero=3"},
    {"persistence_threshold",
     [](auto& s) { return s.zero == 3 || s.persistence_threshold == 0; },
     "has no effect without sharded weights; use --zero=3"},
    {"quantized_weights", [](auto& s) { return s.zero == 3; },
     "requires sharded weights; use --zero=3"},
    {"quantized_gradients", [](auto& s) { return s.zero >= 1; },
     "requires sharded optimizer state; use for example --zero=1"},
    {"hpz_partition_size", [](auto& s) { return s.zero == 3; },
     "requires sharded weights; use --zero=3"},

    {"offload_dir", [](auto& s) { return s.offload != "none"; },
     "has no effect with --offload=none; use for example --offload=optimizer"},
    {"host_budget", [](auto& s) { return s.offload != "none"; },
     "has no effect with --offload=none; use for example --offload=optimizer"},
    {"pin_memory", [](auto& s) { return s.host_budget > ByteSize(); },
     "page-locks --host_budget, which has no limit; use for example "
     "--host_budget=8GiB"},
    {"offload_strategy",
     [](auto& s) { return s.parallel.memory_limit.bytes() > 0; },
     "has no effect without --memory_limit; use for example "
     "--memory_limit=4GiB"},
    {"layout", [](auto& s) { return s.zero >= 1; },
     "has no effect without sharded state; use for example --zero=1"},
    {"compression", [](auto& s) { return s.offload != "none"; },
     "has no effect with --offload=none; use for example --offload=optimizer"},
    {"speculative_bytes",
     [](auto& s) {
       return OffloadsOptimizer(s) && s.offload_dir.empty() &&
              s.compression == "none";
     },
     "has no effect unless the optimizer state is in host memory and not "
     "compressed; use --offload=optimizer without --offload_dir and "
     "--compression"},
    {"speculative_bytes", [](auto& s) { return s.device != "cpu"; },
     "has no effect with --device=cpu, where the host does all work; use for "
     "example --device=emulated"},
    {"speculative_bytes",
     [](auto& s) { return s.parallel.memory_limit.bytes() == 0; },
     "is not counted by --memory_limit; use --speculative_bytes=0"},
    {"speculative_bytes",
     [](auto& s) {
       return s.optimizer != "muon" && !IsAdafactor(s) && !IsShampoo(s);
     },
     "applies to optimizer steps on the host, and --optimizer=muon, adafactor "
     "and shampoo step on the device; use --speculative_bytes=0"},

    {"momentum",
     [](auto& s) { return s.optimizer == "muon" || s.optimizer == "sgd"; },
     "has no effect with --optimizer=adamw, lion and shampoo, which use "
     "--beta1, and adafactor, which has none; use --optimizer=muon or sgd"},
    {"beta1", [](auto& s) { return !IsAdafactor(s); },
     "has no effect with --optimizer=adafactor, which has no first moment; use "
     "--beta1=0.9"},
    {"beta2", [](auto& s) { return !IsAdafactor(s); },
     "has no effect with --optimizer=adafactor, which uses --beta2_decay; use "
     "--beta2=0.95"},
    {"epsilon", [](auto& s) { return !IsAdafactor(s); },
     "has no effect with --optimizer=adafactor, whose epsilon is that of the "
     "type; use --epsilon=1e-8"},
    {"moments", [](auto& s) { return !IsAdafactor(s); },
     "has no effect with --optimizer=adafactor, whose moments are those of "
     "rows and columns; use --moments=f32"},
    {"beta2_decay", [](auto& s) { return IsAdafactor(s); },
     "has no effect without --optimizer=adafactor; use "
     "--optimizer=adafactor"},
    {"update_threshold", [](auto& s) { return IsAdafactor(s); },
     "has no effect without --optimizer=adafactor; use "
     "--optimizer=adafactor"},
    {"shampoo_block", IsShampoo,
     "has no effect without --optimizer=shampoo; use --optimizer=shampoo"},
    {"shampoo_every", IsShampoo,
     "has no effect without --optimizer=shampoo; use --optimizer=shampoo"},
    {"shampoo_epsilon", IsShampoo,
     "has no effect without --optimizer=shampoo; use --optimizer=shampoo"},
    {"optimizer", [](auto& s) { return !IsShampoo(s) || s.lora_rank == 0; },
     "preconditions whole matrices, which --lora_rank does not train; use "
     "--optimizer=adamw"},
    {"moments", [](auto& s) { return !IsShampoo(s) || s.moments != "int8"; },
     "quantizes blocks, which the matrices of --optimizer=shampoo would split; "
     "use --moments=f32 or bf16"},
    {"optimizer",
     [](auto& s) { return s.optimizer != "muon" || s.lora_rank == 0; },
     "orthogonalizes whole matrices, which --lora_rank does not train; use "
     "--optimizer=adamw"},
    {"moments",
     [](auto& s) { return s.optimizer != "muon" || s.moments != "int8"; },
     "quantizes blocks, which the matrices of --optimizer=muon would split; "
     "use --moments=f32 or bf16"},
    {"qk_clip", [](auto& s) { return s.lora_rank == 0; },
     "scales the weights of attention, which --lora_rank does not train; use "
     "--qk_clip=0"},
    {"min_learning_rate", [](auto& s) { return s.lr_schedule != "constant"; },
     "has no effect with --lr_schedule=constant; use for example "
     "--lr_schedule=cosine"},
    {"decay_steps", [](auto& s) { return s.lr_schedule == "wsd"; },
     "has no effect without --lr_schedule=wsd; use --lr_schedule=wsd"},
    {"loss_scale", [](auto& s) { return s.parallel.dtype == DType::kF16; },
     "requires --dtype=fp16, as other types have the exponent range of fp32; "
     "use --loss_scale=0"},
    {"loss_scale_window",
     [](auto& s) {
       return s.parallel.dtype == DType::kF16 && s.loss_scale == 0;
     },
     "requires a dynamic loss scale; use --dtype=fp16 and --loss_scale=0"},
    {"spike_factor", [](auto& s) { return s.spike_factor > 1; },
     "must be more than 1, or 0 for no rollbacks, such as "
     "--spike_factor=1.5"},
    {"spike_factor", [](auto& s) { return s.checkpoint_every > 0; },
     "returns to checkpoints, and --checkpoint_every=0 writes none before the "
     "end; use for example --checkpoint_every=100"},
    {"spike_factor", [](auto& s) { return !s.verify; },
     "skips samples, which the run on one rank of --verify does not; use "
     "--verify=false"},
    {"spike_window", [](auto& s) { return s.spike_factor > 0; },
     "has no effect without --spike_factor; use for example "
     "--spike_factor=1.5"},
    {"max_rollbacks", [](auto& s) { return s.spike_factor > 0; },
     "has no effect without --spike_factor; use for example "
     "--spike_factor=1.5"},
    {"lora_alpha", [](auto& s) { return s.lora_rank > 0; },
     "has no effect without adapters; use for example --lora_rank=8"},
    {"lora_targets", [](auto& s) { return s.lora_rank > 0; },
     "has no effect without adapters; use for example --lora_rank=8"},
    {"base_weights", [](auto& s) { return s.lora_rank > 0; },
     "quantizes frozen weights, and without adapters all weights are trained; "
     "use for example --lora_rank=8"},
    {"base_weights", [](auto& s) { return s.zero == 3; },
     "decodes the weights of a layer when they are gathered, as --zero=3 does; "
     "use --zero=3"},
    {"base_weights", [](auto& s) { return s.hpz_partition_size == 0; },
     "is undone by --hpz_partition_size, which keeps a second copy of decoded "
     "weights; use --hpz_partition_size=0"},

    {"objective", [](auto& s) { return !s.data.empty(); },
     "requires JSON lines with a prompt, a chosen and a rejected completion; "
     "use for example --data=pairs.jsonl"},
    {"objective", [](auto& s) { return s.parallel.micro_batch % 2 == 0; },
     "requires an even --micro_batch, which has whole pairs of sequences; use "
     "for example --micro_batch=2"},
    {"objective", [](auto& s) { return !s.document_attention; },
     "does not support --document_attention, as completions may contain ends "
     "of text; use --document_attention=false"},
    {"objective",
     [](auto& s) { return s.label_smoothing == 0 && s.z_loss == 0; },
     "does not support terms of the cross-entropy; use --label_smoothing=0 and "
     "--z_loss=0"},
    {"objective",
     [](auto& s) { return s.packing == "split" && s.max_bad_lines == 0; },
     "has sequences of one completion and reads every line; use "
     "--packing=split and --max_bad_lines=0"},
    {"objective", [](auto& s) { return s.mask_prompts; },
     "compares completions, of which prompts are no part; use "
     "--mask_prompts=true"},
    {"objective", [](auto& s) { return MayDecline(s); },
     "computes its loss on the host, which --cuda_graphs=on does not capture; "
     "use --cuda_graphs=off"},
    {"dpo_beta", [](auto& s) { return s.objective == "dpo"; },
     "has no effect without --objective=dpo; use --objective=dpo"},

    {"keep_best", [](auto& s) { return s.eval_every > 0; },
     "requires validation losses; use for example --eval_every=100 "
     "--validation_fraction=0.05"},
    {"prometheus_file",
     [](auto& s) { return absl::EndsWith(s.prometheus_file, ".prom"); },
     "must end in .prom, as node_exporter reads no other files; use for "
     "example --prometheus_file=/var/lib/node_exporter/train.prom"},
    {"min_dp", [](auto& s) { return s.max_restarts > 0; },
     "has no effect with --max_restarts=0; use for example --max_restarts=3"},
    {"max_dp", [](auto& s) { return s.max_restarts > 0; },
     "has no effect with --max_restarts=0; use for example --max_restarts=3"},
    {"snapshot_every", [](auto& s) { return s.max_restarts > 0; },
     "is for the replacement of lost ranks, which --max_restarts=0 rules out; "
     "use for example --max_restarts=3"},
    {"snapshot_every",
     [](auto& s) { return s.engine != "in_process" && s.engine != "mpi"; },
     "requires ranks that are processes and that this command starts; use "
     "--engine=shared_memory, gloo or auto"},
    {"snapshot_every", [](auto& s) { return s.parallel.mesh.world_size() > 1; },
     "keeps copies in the memory of other ranks, of which a single rank has "
     "none; use for example --mesh=dp2"},

    {"mtbf", [](auto& s) { return s.snapshot_every == kAutomatic; },
     "is for the number of steps between copies in memory; use "
     "--snapshot_every=auto"},

    // The conditions of TrainRank for the capture of a step.
    {"cuda_graphs", [](auto& s) { return MayDecline(s) || s.device != "cpu"; },
     "requires an asynchronous device; use for example --device=emulated"},
    {"cuda_graphs",
     [](auto& s) { return MayDecline(s) || s.batch_warmup.empty(); },
     "requires equal steps, and --batch_warmup changes their size; use "
     "--cuda_graphs=off"},
    {"cuda_graphs",
     [](auto& s) { return MayDecline(s) || s.parallel.mesh.world_size() == 1; },
     "requires a single rank, because collectives are not captured; use "
     "--mesh=dp1"},
    {"cuda_graphs", [](auto& s) { return MayDecline(s) || s.dropout == 0; },
     "does not support dropout, whose masks change every step; use "
     "--dropout=0"},
    {"cuda_graphs",
     [](auto& s) { return MayDecline(s) || s.offload == "none"; },
     "does not support offload, whose transfers change every step; use "
     "--offload=none"},
    {"cuda_graphs",
     [](auto& s) {
       return MayDecline(s) || s.parallel.memory_limit.bytes() == 0;
     },
     "does not support --memory_limit, which may change the strategy during "
     "the run; use --cuda_graphs=auto"},
};

absl::Status CheckRules(const Settings& settings) {
  const Settings defaults;
  for (const Rule& rule : kRules) {
    if (rule.holds(settings)) continue;
    if (FieldText(rule.flag, settings) == FieldText(rule.flag, defaults)) {
      continue;
    }
    return Refuse(settings, rule.flag, rule.otherwise);
  }
  return absl::OkStatus();
}

absl::Status CheckModelAndData(const Settings& settings) {
  if (settings.model.empty()) {
    return Refuse(settings, "model",
                  "must be a preset or a directory with a config.json, such as "
                  "--model=llama-1m");
  }
  if (absl::c_linear_search(settings.data, "")) {
    return RefuseFlag("data", "",
                      "contains an empty name; use files, directories or "
                      "patterns such as --data=docs,src/*.cc");
  }
  if (settings.validation_fraction + settings.test_fraction < 1) {
    return absl::OkStatus();
  }
  return Refuse(settings, "test_fraction", "leaves no training data with ",
                "--validation_fraction=", settings.validation_fraction,
                "; use a sum below 1, such as --test_fraction=0.05");
}

absl::Status CheckDevice(const Settings& settings) {
  const std::string& device = settings.device;
  const bool is_list = absl::StartsWith(device, "cuda:");
  if (is_list &&
      topology::DeviceMesh::Parse(absl::StripPrefix(device, "cuda:")).ok()) {
    return absl::OkStatus();
  }
  if (!is_list && (device.empty() || device == "cpu" || device == "emulated" ||
                   device == "cuda")) {
    return absl::OkStatus();
  }
  return Refuse(settings, "device",
                "must be one of cpu, emulated, cuda, or a list of distinct "
                "GPUs, such as --device=cuda:0,2,3");
}

absl::Status CheckBatch(const Settings& settings, const MeshSizes& mesh) {
  const int64_t unit = mesh.dp * settings.parallel.micro_batch;
  if (settings.batch % unit == 0) return absl::OkStatus();
  return Refuse(settings, "batch", "must be a multiple of ", unit, " (dp ",
                mesh.dp, " x --micro_batch=", settings.parallel.micro_batch,
                "), such as --batch=",
                std::max<int64_t>(settings.batch / unit, 1) * unit);
}

// The sizes to which the data axis may shrink and grow.
absl::Status CheckDataSizes(const Settings& settings, const MeshSizes& mesh) {
  // Hybrid sharding changes the number of replicas only.
  const int64_t shard = mesh.dp_replicate > 1 ? mesh.dp_shard() : 1;
  const int64_t micro_batch = settings.parallel.micro_batch;
  const auto check = [&](std::string_view flag, int64_t dp, bool is_in_order) {
    std::string why;
    if (!is_in_order) {
      why = absl::StrCat("must be at ", flag == "min_dp" ? "most" : "least",
                         " the dp ", mesh.dp, " of --mesh=", mesh.ToFlag());
    } else if (settings.batch % (dp * micro_batch) != 0) {
      why = absl::StrCat("dp ", dp, " x --micro_batch=", micro_batch,
                         " does not divide --batch=", settings.batch);
    } else if (dp % shard != 0) {
      why = absl::StrCat("is not a multiple of dp_shard ", shard,
                         " of --mesh=", mesh.ToFlag());
    } else {
      return absl::OkStatus();
    }
    return Refuse(settings, flag, why, ", such as --", flag, "=", mesh.dp);
  };
  const int64_t least = settings.min_dp == 0 ? mesh.dp : settings.min_dp;
  const int64_t most = settings.max_dp == 0 ? mesh.dp : settings.max_dp;
  TESSERA_RETURN_IF_ERROR(check("min_dp", least, least <= mesh.dp));
  return check("max_dp", most, most >= mesh.dp);
}

// Every rank of the context group needs at least one position.
absl::Status CheckLength(const Settings& settings, const MeshSizes& mesh) {
  if (mesh.cp == 1) return absl::OkStatus();
  const int64_t parts = settings.context == "zigzag" ? 2 * mesh.cp : mesh.cp;
  if (settings.length >= parts) return absl::OkStatus();
  return Refuse(settings, "length", "must be at least ", parts, ", since cp ",
                mesh.cp, " with --context=", settings.context,
                " splits sequences into ", parts, ", such as --length=", parts);
}

const pipeline::Generator* FindGenerator(std::string_view name) {
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    if (generator.name == name) return &generator;
  }
  return nullptr;
}

absl::Status CheckSchedule(const Settings& settings, const MeshSizes& mesh) {
  const topology::ParallelConfig& parallel = settings.parallel;
  // These are checked when the model is known.
  if (IsScheduleFile(parallel.schedule) || parallel.schedule == "auto") {
    return absl::OkStatus();
  }
  const pipeline::Generator* const generator = FindGenerator(parallel.schedule);
  if (generator == nullptr) {
    std::vector<std::string_view> names = pipeline::GeneratorNames();
    names.push_back("auto");
    return Refuse(settings, "schedule", "must be one of ",
                  absl::StrJoin(names, ", "),
                  " or a CSV file, such as --schedule=1f1b");
  }
  if (generator->chunks != 0 && parallel.chunks != generator->chunks) {
    return Refuse(settings, "chunks", "--schedule=", parallel.schedule, " has ",
                  generator->chunks,
                  " per rank; use --chunks=", generator->chunks);
  }
  if (generator->even_ranks && mesh.pp % 2 != 0) {
    return Refuse(settings, "mesh", "--schedule=", parallel.schedule,
                  " requires an even pp, such as pp", mesh.pp + 1);
  }
  const absl::StatusOr<pipeline::Schedule> schedule = pipeline::Generate(
      parallel.schedule,
      {.ranks = mesh.pp,
       .chunks = parallel.chunks,
       .microbatches = settings.batch / mesh.dp / parallel.micro_batch});
  return tools::FlagError("schedule", parallel.schedule, schedule.status());
}

// Each batch size needs its own pipeline schedule. Generators can make one for
// any number of micro-batches.
absl::Status CheckBatchWarmup(const Settings& settings, const MeshSizes& mesh) {
  if (settings.batch_warmup.empty()) return absl::OkStatus();
  const auto refuse = [&](auto&&... why) {
    return RefuseFlag("batch_warmup", settings.batch_warmup.substr(0, 60),
                      absl::StrCat(why...));
  };
  const auto warmup = ParseBatchWarmup(settings.batch_warmup);
  if (!warmup || warmup->steps > int64_t{1} << 40) {
    return refuse(
        "must be a number of sequences and a number of steps, such as "
        "--batch_warmup=4:100");
  }
  const int64_t unit = mesh.dp * settings.parallel.micro_batch;
  const auto is_possible = [&](int64_t batch) {
    return batch < settings.batch && settings.batch % batch == 0 &&
           settings.batch / batch <= BatchSchedule::kMostSizes &&
           batch % unit == 0;
  };
  if (!is_possible(warmup->first)) {
    int64_t parts = 2;
    while (
        parts <= BatchSchedule::kMostSizes &&
        (settings.batch % parts != 0 || !is_possible(settings.batch / parts))) {
      ++parts;
    }
    return refuse(
        "the first batch must be a divisor of --batch=", settings.batch,
        ", from 1/", BatchSchedule::kMostSizes,
        " to 1/2 of it, and a multiple of ", unit, " (dp ", mesh.dp,
        " x --micro_batch=", settings.parallel.micro_batch, "), such as ",
        parts <= BatchSchedule::kMostSizes
            ? absl::StrCat("--batch_warmup=", settings.batch / parts, ":",
                           warmup->steps)
            : absl::StrCat("with --batch=", 2 * settings.batch));
  }
  const std::string& name = settings.parallel.schedule;
  if (name == "auto" || IsScheduleFile(name)) {
    return refuse(
        "requires a schedule for each number of micro-batches, and --schedule=",
        name.substr(0, 60), " has one; use for example --schedule=1f1b");
  }
  if (settings.speculative_bytes > 0) {
    return refuse(
        "changes the gradient reductions as the batch grows, and "
        "--speculative_bytes requires equal steps; use --speculative_bytes=0");
  }
  return absl::OkStatus();
}

// Checks that batch, length and schedule fit the mesh.
absl::Status CheckMesh(const Settings& settings) {
  const MeshSizes& mesh = settings.parallel.mesh;
  if (settings.order != kAutoOrder) {
    const absl::Status order = mesh.ParseOrder(settings.order).status();
    if (!order.ok()) return Refuse(settings, "order", order.message());
  }
  TESSERA_RETURN_IF_ERROR(CheckBatch(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckDataSizes(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckLength(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckSchedule(settings, mesh));
  return CheckBatchWarmup(settings, mesh);
}

absl::Status CheckHpz(const Settings& settings) {
  if (settings.hpz_partition_size == 0) return absl::OkStatus();
  const MeshSizes& mesh = settings.parallel.mesh;
  const int64_t ranks = mesh.shard_ranks();
  if (ranks % settings.hpz_partition_size == 0) return absl::OkStatus();
  return Refuse(settings, "hpz_partition_size", "must divide the ", ranks,
                " ranks that share the weights (dp_shard ", mesh.dp_shard(),
                " x cp ", mesh.cp, "), such as --hpz_partition_size=",
                std::gcd(ranks, settings.hpz_partition_size));
}

// --compression must have an effect, and must not round exact data.
absl::Status CheckCompression(const Settings& settings) {
  const std::string& codec = settings.compression;
  if (codec == "none" || codec == "lossless" ||
      TierCodecRounds(settings, offload::Purpose::kParameters) ||
      TierCodecRounds(settings, offload::Purpose::kGradients)) {
    return absl::OkStatus();
  }
  const OffloadChoice choice = OffloadChoice::Of(settings.offload);
  if (!choice.parameters) {
    return Refuse(
        settings, "compression", "is lossy, and --offload=", settings.offload,
        " offloads only ",
        !choice.activations ? "master weights and moments"
        : choice.optimizer  ? "master weights, moments and activations"
                            : "activations",
        ", which require exact codecs; use --compression=none or lossless",
        choice.optimizer ? ", or smaller moments such as --moments=int8" : "");
  }
  if (settings.parallel.dtype == DType::kF32) {
    return Refuse(settings, "compression",
                  "is lossy, and parameters of --dtype=fp32 are master "
                  "weights, which require exact codecs; use "
                  "--compression=none or lossless, or --dtype=bf16");
  }
  return Refuse(settings, "compression", "does not shrink parameters of ",
                "--dtype=", DTypeFlag(settings.parallel),
                ", which have 16 bits; use lossless, int8 or quantization, "
                "such as --compression=int8");
}

// Accepts one name, or several that neither exclude nor include each other.
absl::Status CheckOffloadNames(const Settings& settings) {
  constexpr std::string_view kNames[] = {"none",  "optimizer", "params",
                                         "grads", "all",       "activations"};
  constexpr std::string_view kExample =
      "; use for example --offload=optimizer,activations";
  const std::vector<std::string_view> names =
      absl::StrSplit(settings.offload, ',');
  for (const std::string_view name : names) {
    if (!absl::c_linear_search(kNames, name)) {
      return Refuse(settings, "offload", "contains \"", absl::CHexEscape(name),
                    "\", which is not one of ", absl::StrJoin(kNames, ", "),
                    kExample);
    }
    if (name == "none" && names.size() > 1) {
      return Refuse(settings, "offload", "combines none with other names",
                    kExample);
    }
    if (absl::c_count(names, name) > 1) {
      return Refuse(settings, "offload", "contains ", name, " twice", kExample);
    }
    const bool is_in_all =
        name == "optimizer" || name == "params" || name == "grads";
    if (is_in_all && absl::c_linear_search(names, "all")) {
      return Refuse(settings, "offload", "contains ", name,
                    ", which all includes", kExample);
    }
  }
  return absl::OkStatus();
}

// Parameters can be offloaded only at stage 3, because below it every rank
// holds all of them. The optimizer state can be offloaded at any stage.
absl::Status CheckOffload(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(CheckOffloadNames(settings));
  if (OffloadChoice::Of(settings.offload).parameters && settings.zero < 3) {
    return Refuse(settings, "offload",
                  "requires --zero=3, because with --zero=", settings.zero,
                  " every rank holds all parameters at any time; use --zero=3 "
                  "or --offload=",
                  WithActivationsOf(settings.offload, "optimizer"));
  }
  const auto names = absl::StrSplit(settings.offload, ',');
  if (absl::c_linear_search(names, "grads") && settings.zero < 2) {
    return Refuse(settings, "offload",
                  "requires --zero=2 or 3, because with --zero=", settings.zero,
                  " every rank holds all gradients; use --zero=2 or --offload=",
                  WithActivationsOf(settings.offload, "optimizer"));
  }
  return absl::OkStatus();
}

absl::Status CheckLearningRate(const Settings& settings) {
  const absl::Status groups =
      zero3::ParseParameterGroups(settings.param_groups).status();
  if (!groups.ok()) {
    return RefuseFlag("param_groups", settings.param_groups, groups.message());
  }
  if (settings.min_learning_rate > settings.learning_rate) {
    return Refuse(
        settings, "min_learning_rate",
        "must be at most --learning_rate=", settings.learning_rate,
        ", such as --min_learning_rate=", settings.learning_rate / 10);
  }
  if (settings.decay_steps <= settings.steps) return absl::OkStatus();
  return Refuse(settings, "decay_steps",
                "must be at most --steps=", settings.steps,
                ", such as --decay_steps=", settings.steps);
}

absl::Status CheckOutputs(const Settings& settings) {
  if ((settings.resume == "latest" || settings.resume == "best") &&
      settings.run_dir.empty()) {
    return Refuse(settings, "resume",
                  "selects a checkpoint of --run_dir, which is empty; use for "
                  "example --run_dir=run");
  }
  const struct {
    std::string_view flag;
    const std::string& file;
    std::string_view example;
  } files[] = {
      {"metrics", settings.metrics, "metrics.jsonl"},
      {"trace", settings.trace, "trace.json"},
      {"html", settings.html, "run.html"},
      {"prometheus_file", settings.prometheus_file, "train.prom"},
  };
  for (const auto& one : files) {
    std::error_code error;
    const bool is_device = std::filesystem::is_other(one.file, error);
    for (const auto& other : files) {
      if (&other == &one || is_device) break;
      if (one.file.empty() || one.file != other.file) continue;
      return RefuseFlag(one.flag, one.file,
                        absl::StrCat("is also the file of --", other.flag,
                                     "; use another one, such as --", one.flag,
                                     "=", one.example));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTimes(const Settings& settings) {
  const auto hang = ParseTimeSpan(settings.hang_timeout);
  if (!settings.hang_timeout.empty() && !hang.ok()) {
    return Refuse(settings, "hang_timeout", hang.status().message());
  }
  const auto failure = ParseTimeSpan(settings.mtbf);
  if (!failure.ok()) {
    return Refuse(settings, "mtbf", failure.status().message());
  }
  const auto grace = ParseTimeSpan(settings.grace_period);
  if (!grace.ok()) {
    return Refuse(settings, "grace_period", grace.status().message());
  }
  if (settings.time_limit.empty()) return absl::OkStatus();
  const auto limit = ParseTimeSpan(settings.time_limit);
  if (!limit.ok()) {
    return Refuse(settings, "time_limit", limit.status().message());
  }
  if (*limit > *grace) return absl::OkStatus();
  return Refuse(settings, "time_limit",
                "must be above --grace_period=", settings.grace_period,
                ", such as --time_limit=", absl::FormatDuration(10 * *grace));
}

}  // namespace

bool IsScheduleFile(std::string_view schedule) {
  return absl::EndsWith(schedule, ".csv") || absl::StrContains(schedule, "/");
}

absl::Status CheckParallel(const topology::ParallelConfig& parallel,
                           std::optional<int64_t> world_size) {
  const std::vector<topology::ConfigProblem> problems =
      parallel.Problems(world_size);
  return problems.empty() ? absl::OkStatus() : FlagProblem(problems.front());
}

absl::Status CheckSettings(const Settings& settings) {
  for (const SettingsField& field : SettingsFields()) {
    TESSERA_RETURN_IF_ERROR(CheckAllowed(field, settings));
  }
  TESSERA_RETURN_IF_ERROR(CheckParallel(settings.parallel));
  TESSERA_RETURN_IF_ERROR(CheckModelAndData(settings));
  TESSERA_RETURN_IF_ERROR(CheckDevice(settings));
  TESSERA_RETURN_IF_ERROR(CheckMesh(settings));
  TESSERA_RETURN_IF_ERROR(CheckOffload(settings));
  TESSERA_RETURN_IF_ERROR(CheckLearningRate(settings));
  TESSERA_RETURN_IF_ERROR(CheckRules(settings));
  TESSERA_RETURN_IF_ERROR(CheckHpz(settings));
  TESSERA_RETURN_IF_ERROR(CheckCompression(settings));
  TESSERA_RETURN_IF_ERROR(CheckTimes(settings));
  return CheckOutputs(settings);
}

}  // namespace tessera::train
