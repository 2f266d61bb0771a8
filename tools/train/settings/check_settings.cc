#include "tools/train/settings/check_settings.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "offload/tier/accounting.h"
#include "pipeline/generate/generate.h"
#include "tools/cli/cli.h"
#include "tools/train/settings/batch_schedule.h"
#include "tools/train/settings/flag_checks.h"
#include "tools/train/settings/offload_choice.h"
#include "topology/config/strategies.h"
#include "topology/device_mesh.h"

namespace tessera::train {
namespace {

using topology::MeshSizes;

constexpr int64_t kMany = int64_t{1} << 40;
// Each checkpoint stores the losses of the window.
constexpr int64_t kMostSpikeWindow = 1000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

absl::Status CheckModelAndData(const Settings& settings) {
  if (settings.model.empty()) {
    return RefuseFlag("model", "",
                      "must be a preset or a directory with a config.json, "
                      "such as --model=llama-1m");
  }
  for (const std::string& path : settings.data) {
    if (!path.empty()) continue;
    return RefuseFlag("data", "",
                      "has an empty name; give files, directories or patterns "
                      "such as --data=docs,src/*.cc");
  }
  const DType dtype = settings.parallel.dtype;
  if (topology::EnumName(dtype).empty()) {
    return RefuseFlag(
        "dtype", DTypeName(dtype),
        "must be one of fp32, bf16, fp16, fp8, such as --dtype=fp32");
  }
  if (settings.parallel.fp8 && dtype != DType::kBF16) {
    return RefuseFlag("dtype", DTypeName(dtype),
                      "has no products in fp8, which need weights and "
                      "activations in bf16; give --dtype=fp8");
  }
  TESSERA_RETURN_IF_ERROR(
      CheckRange("length", settings.length, {1, int64_t{1} << 31}));
  TESSERA_RETURN_IF_ERROR(CheckRange("batch", settings.batch, {1, kMany}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("micro_batch", settings.parallel.micro_batch, {1, kMany}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("train_tokens", settings.train_tokens, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(CheckRange("steps", settings.steps, {1, kMany}));
  TESSERA_RETURN_IF_ERROR(CheckRange("seed", settings.seed,
                                     {0, std::numeric_limits<int64_t>::max()}));
  TESSERA_RETURN_IF_ERROR(CheckRange("validation_fraction",
                                     settings.validation_fraction,
                                     {.below = 1, .example = "0.05"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("test_fraction", settings.test_fraction,
                                     {.below = 1, .example = "0.05"}));
  if (settings.validation_fraction + settings.test_fraction >= 1) {
    return RefuseFlag("test_fraction", settings.test_fraction,
                      absl::StrCat("with --validation_fraction=",
                                   settings.validation_fraction,
                                   " nothing is left to train on; give less "
                                   "than 1 together"));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckRange("eval_every", settings.eval_every, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("eval_batches", settings.eval_batches, {1, kMany}));
  if (settings.eval_every > 0 && settings.validation_fraction == 0) {
    return RefuseFlag("eval_every", settings.eval_every,
                      "needs data that is not trained on; give for example "
                      "--validation_fraction=0.05");
  }
  return absl::OkStatus();
}

// Checks the rules of TrainRank with errors that name flags.
absl::Status CheckGraphs(const Settings& settings) {
  constexpr std::string_view kChoices[] = {"auto", "on", "off"};
  TESSERA_RETURN_IF_ERROR(
      CheckChoice("cuda_graphs", settings.cuda_graphs, kChoices));
  if (settings.cuda_graphs != "on") return absl::OkStatus();
  const auto refuse = [](auto&&... why) {
    return RefuseFlag("cuda_graphs", "on", absl::StrCat(why...));
  };
  if (settings.device == "cpu") {
    return refuse(
        "needs a device that works on its own, and --device=cpu; "
        "give for example --device=emulated");
  }
  if (!settings.batch_warmup.empty()) {
    return refuse(
        "needs steps that are all alike, and --batch_warmup changes "
        "them; give --cuda_graphs=off");
  }
  const MeshSizes& mesh = settings.parallel.mesh;
  if (mesh.world_size() > 1) {
    return refuse(
        "needs one rank, because collectives are not captured, and "
        "--mesh=",
        mesh.ToFlag(), "; give for example --mesh=dp1");
  }
  if (settings.dropout > 0) {
    return refuse("masks of dropout depend on the step; give --dropout=0");
  }
  if (settings.offload != "none") {
    return refuse("transfers of --offload=", settings.offload.substr(0, 60),
                  " differ from step to step; give --offload=none");
  }
  if (settings.parallel.memory_limit.bytes() > 0) {
    return refuse(
        "needs a strategy that stays, and --memory_limit may change "
        "it; give --cuda_graphs=auto");
  }
  return absl::OkStatus();
}

absl::Status CheckExecution(const Settings& settings) {
  constexpr std::string_view kEngines[] = {"shared_memory", "in_process", "mpi",
                                           "gloo", "nccl"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("engine", settings.engine, kEngines));
  constexpr std::string_view kRecompute[] = {"none", "selective", "full"};
  TESSERA_RETURN_IF_ERROR(
      CheckChoice("recompute", settings.recompute, kRecompute));
  TESSERA_RETURN_IF_ERROR(CheckRange(
      "timeout_seconds", absl::ToInt64Seconds(settings.parallel.timeout),
      {1, 1'000'000}));
  constexpr std::string_view kDevices[] = {"cpu", "emulated", "cuda"};
  if (absl::StartsWith(settings.device, "cuda:")) {
    const auto gpus = topology::DeviceMesh::Parse(
        absl::StripPrefix(settings.device, "cuda:"));
    if (!gpus.ok()) {
      return RefuseFlag("device", settings.device,
                        "must be one of cpu, emulated, cuda, or a list of "
                        "different GPUs, such as --device=cuda:0,2,3");
    }
  } else if (!settings.device.empty()) {
    TESSERA_RETURN_IF_ERROR(CheckChoice("device", settings.device, kDevices));
  }
  TESSERA_RETURN_IF_ERROR(CheckRange("device_seed", settings.device_seed,
                                     {0, std::numeric_limits<int64_t>::max()}));
  TESSERA_RETURN_IF_ERROR(CheckGraphs(settings));
  return CheckRange("threads", settings.threads, {1, 1024});
}

absl::Status CheckBatch(const Settings& settings, const MeshSizes& mesh) {
  const int64_t unit = mesh.dp * settings.parallel.micro_batch;
  if (settings.batch % unit == 0) return absl::OkStatus();
  return RefuseFlag(
      "batch", settings.batch,
      absl::StrCat("must be a multiple of ", unit, " (dp ", mesh.dp,
                   " x --micro_batch=", settings.parallel.micro_batch,
                   "), such as --batch=",
                   std::max<int64_t>(settings.batch / unit, 1) * unit));
}

// Every rank of the context group needs at least one position.
absl::Status CheckLength(const Settings& settings, const MeshSizes& mesh) {
  constexpr std::string_view kLayouts[] = {"zigzag", "contiguous"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("context", settings.context, kLayouts));
  if (mesh.cp == 1) return absl::OkStatus();
  const int64_t parts = settings.context == "zigzag" ? 2 * mesh.cp : mesh.cp;
  if (settings.length >= parts) return absl::OkStatus();
  return RefuseFlag("length", settings.length,
                    absl::StrCat("must be at least ", parts, ", since cp ",
                                 mesh.cp, " with --context=", settings.context,
                                 " cuts sequences into ", parts,
                                 ", such as --length=", parts));
}

const pipeline::Generator* FindGenerator(std::string_view name) {
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    if (generator.name == name) return &generator;
  }
  return nullptr;
}

absl::Status CheckSchedule(const Settings& settings, const MeshSizes& mesh) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("chunks", settings.parallel.chunks, {1, int64_t{1} << 20}));
  const topology::ParallelConfig& parallel = settings.parallel;
  // These are checked when the model is known.
  if (IsScheduleFile(parallel.schedule) || parallel.schedule == "auto") {
    return absl::OkStatus();
  }
  std::vector<std::string_view> names = pipeline::GeneratorNames();
  names.push_back("auto");
  TESSERA_RETURN_IF_ERROR(CheckChoice("schedule", parallel.schedule, names));
  const pipeline::Generator& generator = *FindGenerator(parallel.schedule);
  if (generator.chunks != 0 && parallel.chunks != generator.chunks) {
    return RefuseFlag(
        "chunks", parallel.chunks,
        absl::StrCat("--schedule=", parallel.schedule, " has ",
                     generator.chunks,
                     " on each rank; give --chunks=", generator.chunks));
  }
  if (generator.even_ranks && mesh.pp % 2 != 0) {
    return RefuseFlag(
        "mesh", mesh.ToFlag(),
        absl::StrCat("--schedule=", parallel.schedule,
                     " needs an even pp, such as pp", mesh.pp + 1));
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
  if (!warmup || warmup->steps > kMany) {
    return refuse(
        "must be a number of sequences and of steps, such as "
        "--batch_warmup=4:100");
  }
  const int64_t first = warmup->first;
  const int64_t unit = mesh.dp * settings.parallel.micro_batch;
  const auto is_possible = [&](int64_t batch) {
    return batch < settings.batch && settings.batch % batch == 0 &&
           settings.batch / batch <= BatchSchedule::kMostSizes &&
           batch % unit == 0;
  };
  if (!is_possible(first)) {
    int64_t parts = 2;
    while (
        parts <= BatchSchedule::kMostSizes &&
        (settings.batch % parts != 0 || !is_possible(settings.batch / parts))) {
      ++parts;
    }
    return refuse(
        "its first batch must be a divisor of --batch=", settings.batch,
        ", from a ", BatchSchedule::kMostSizes,
        "th to a half of it, and a multiple of ", unit, " (dp ", mesh.dp,
        " x --micro_batch=", settings.parallel.micro_batch, "), such as ",
        parts <= BatchSchedule::kMostSizes
            ? absl::StrCat("--batch_warmup=", settings.batch / parts, ":",
                           warmup->steps)
            : absl::StrCat("with --batch=", 2 * settings.batch));
  }
  const std::string& name = settings.parallel.schedule;
  if (name == "auto" || IsScheduleFile(name)) {
    return refuse(
        "needs a schedule for each number of micro-batches, and "
        "--schedule=",
        name.substr(0, 60), " is of one; give for example --schedule=1f1b");
  }
  if (settings.speculative_bytes > 0) {
    return refuse(
        "needs other reductions of gradients as the batch grows, and "
        "--speculative_bytes steps that are all alike; give "
        "--speculative_bytes=0");
  }
  return absl::OkStatus();
}

absl::Status CheckContextAttention(const Settings& settings,
                                   const MeshSizes& mesh) {
  constexpr std::string_view kAlgorithms[] = {"ring", "ulysses"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("context_attention",
                                      settings.context_attention, kAlgorithms));
  if (mesh.cp > 1 || settings.context_attention == "ring") {
    return absl::OkStatus();
  }
  return RefuseFlag("context_attention", settings.context_attention,
                    "has no effect with cp 1, where every rank has whole "
                    "sequences; give for example --mesh=cp2");
}

// Tensor ranks exchange chunks of tokens only with sequence parallelism.
absl::Status CheckOverlap(const Settings& settings, const MeshSizes& mesh) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("overlap_chunks", settings.overlap_chunks, {0, 1024}));
  if (settings.overlap_chunks == 0) return absl::OkStatus();
  if (mesh.tp == 1) {
    return RefuseFlag("overlap_chunks", settings.overlap_chunks,
                      "has no effect with tp 1, where no tokens travel between "
                      "tensor ranks; give for example --mesh=tp2");
  }
  if (settings.sequence_parallel) return absl::OkStatus();
  return RefuseFlag("overlap_chunks", settings.overlap_chunks,
                    "applies to gathered and scattered tokens; give also "
                    "--sequence_parallel");
}

// Checks that batch, length and schedule fit the mesh.
absl::Status CheckMesh(const Settings& settings) {
  const MeshSizes& mesh = settings.parallel.mesh;
  if (const absl::Status status = mesh.Validate(); !status.ok()) {
    return RefuseFlag("mesh", mesh.ToFlag(),
                      absl::StrCat(status.message(),
                                   "; give for example --mesh=dp2,pp2,tp2"));
  }
  if (settings.order != kAutoOrder) {
    const absl::Status order = mesh.ParseOrder(settings.order).status();
    if (!order.ok())
      return RefuseFlag("order", settings.order, order.message());
  }
  TESSERA_RETURN_IF_ERROR(CheckBatch(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckLength(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckContextAttention(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckOverlap(settings, mesh));
  TESSERA_RETURN_IF_ERROR(CheckSchedule(settings, mesh));
  return CheckBatchWarmup(settings, mesh);
}

// Rejects ZeRO++ options for traffic that the run does not have.
absl::Status CheckZeroPlusPlus(const Settings& settings) {
  if (settings.quantized_weights && settings.zero < 3) {
    return RefuseFlag(
        "quantized_weights", "true",
        absl::StrCat("needs --zero=3, because with --zero=", settings.zero,
                     " weights are not sharded; give --zero=3"));
  }
  if (settings.quantized_gradients && settings.zero < 1) {
    return RefuseFlag("quantized_gradients", "true",
                      "needs sharded optimizer state, and --zero=0 sums "
                      "gradients on every rank; give for example --zero=1");
  }
  TESSERA_RETURN_IF_ERROR(CheckRange("hpz_partition_size",
                                     settings.hpz_partition_size,
                                     {0, MeshSizes::kMaxRanks}));
  if (settings.hpz_partition_size == 0) return absl::OkStatus();
  if (settings.zero < 3) {
    return RefuseFlag(
        "hpz_partition_size", settings.hpz_partition_size,
        absl::StrCat("needs --zero=3, because with --zero=", settings.zero,
                     " every rank has all weights; give --zero=3"));
  }
  const MeshSizes& mesh = settings.parallel.mesh;
  const int64_t ranks = mesh.shard_ranks();
  if (ranks % settings.hpz_partition_size == 0) return absl::OkStatus();
  return RefuseFlag(
      "hpz_partition_size", settings.hpz_partition_size,
      absl::StrCat("must divide the ", ranks,
                   " ranks that share the weights (dp_shard ", mesh.dp_shard(),
                   " x cp ", mesh.cp, "), such as --hpz_partition_size=",
                   std::gcd(ranks, settings.hpz_partition_size)));
}

// --compression must have an effect, and must not round exact data.
absl::Status CheckCompression(const Settings& settings) {
  const std::string& codec = settings.compression;
  if (codec == "none") return absl::OkStatus();
  if (settings.offload == "none") {
    return RefuseFlag("compression", codec,
                      "applies to offloaded data, and --offload=none; give for "
                      "example --offload=optimizer");
  }
  if (codec == "lossless" ||
      TierCodecRounds(settings, offload::Purpose::kParameters) ||
      TierCodecRounds(settings, offload::Purpose::kGradients)) {
    return absl::OkStatus();
  }
  const OffloadChoice choice = OffloadChoice::Of(settings.offload);
  if (!choice.parameters) {
    return RefuseFlag(
        "compression", codec,
        absl::StrCat(
            "rounds, and --offload=", settings.offload, " offloads only ",
            !choice.activations ? "master weights and moments"
            : choice.optimizer  ? "master weights, moments and activations"
                                : "activations",
            ", which no codec may round; give --compression=none or lossless",
            choice.optimizer
                ? ", and for smaller moments such as --moments=int8"
                : ""));
  }
  if (settings.parallel.dtype == DType::kF32) {
    return RefuseFlag(
        "compression", codec,
        absl::StrCat(
            "rounds, and parameters of --dtype=fp32 are their own master "
            "weights, which no codec may round; give --compression=none or "
            "lossless, or --dtype=bf16 such as with --compression=int8"));
  }
  return RefuseFlag(
      "compression", codec,
      absl::StrCat("does not shrink parameters of --dtype=",
                   DTypeFlag(settings.parallel),
                   ", which have 16 bits; give lossless, int8 or quantization, "
                   "such as --compression=int8"));
}

absl::Status CheckSpeculation(const Settings& settings) {
  const int64_t bytes = settings.speculative_bytes;
  TESSERA_RETURN_IF_ERROR(CheckRange("speculative_bytes", bytes, {0, kMany}));
  if (bytes == 0) return absl::OkStatus();
  if (!OffloadChoice::Of(settings.offload).optimizer ||
      !settings.offload_dir.empty() || settings.compression != "none") {
    return RefuseFlag(
        "speculative_bytes", bytes,
        "has no effect unless the optimizer's state is in host "
        "memory, not compressed; give --offload=optimizer without "
        "--offload_dir and --compression");
  }
  if (settings.device == "cpu") {
    return RefuseFlag("speculative_bytes", bytes,
                      "has no effect with --device=cpu, whose work the host "
                      "does; give for example --device=emulated");
  }
  if (settings.parallel.memory_limit.bytes() > 0) {
    return RefuseFlag("speculative_bytes", bytes,
                      "is memory that --memory_limit does not count; give "
                      "--speculative_bytes=0");
  }
  return absl::OkStatus();
}

// Flags for gathered weights require stage 3; --reduce requires stage 2 or 3.
absl::Status CheckGathers(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("gather_ahead", settings.gather_ahead, {0, 1'000'000}));
  TESSERA_RETURN_IF_ERROR(CheckRange("max_gathered_bytes",
                                     settings.max_gathered_bytes, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(CheckRange(
      "persistence_threshold", settings.persistence_threshold, {0, kMany}));
  constexpr std::string_view kReduces[] = {"auto", "each", "last"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("reduce", settings.reduce, kReduces));
  const Settings defaults;
  const auto needs_stage = [&](std::string_view flag,
                               const absl::AlphaNum& value, int64_t stage) {
    return RefuseFlag(flag, value,
                      absl::StrCat("has no effect with --zero=", settings.zero,
                                   "; give for example --zero=", stage));
  };
  if (settings.reduce != defaults.reduce && settings.zero < 2) {
    return needs_stage("reduce", settings.reduce, 2);
  }
  if (settings.zero == 3) return absl::OkStatus();
  if (settings.gather_ahead != defaults.gather_ahead) {
    return needs_stage("gather_ahead", settings.gather_ahead, 3);
  }
  if (settings.max_gathered_bytes != 0) {
    return needs_stage("max_gathered_bytes", settings.max_gathered_bytes, 3);
  }
  if (settings.persistence_threshold != 0 &&
      settings.persistence_threshold != defaults.persistence_threshold) {
    return needs_stage("persistence_threshold", settings.persistence_threshold,
                       3);
  }
  return absl::OkStatus();
}

// Accepts one name, or several that neither exclude nor include each other.
absl::Status CheckOffload(const std::string& offload) {
  constexpr std::string_view kNames[] = {"none", "optimizer", "params", "all",
                                         "activations"};
  const std::vector<std::string_view> names = absl::StrSplit(offload, ',');
  if (names.size() == 1) return CheckChoice("offload", offload, kNames);
  const auto refuse = [&](const absl::AlphaNum& what) {
    return RefuseFlag(
        "offload", offload,
        absl::StrCat(what.Piece(),
                     "; give for example --offload=optimizer,activations"));
  };
  for (size_t i = 0; i < names.size(); ++i) {
    if (!absl::c_linear_search(kNames, names[i])) {
      return refuse(absl::StrCat("each part must be one of ",
                                 absl::StrJoin(kNames, ", "), ", and \"",
                                 absl::CHexEscape(names[i]), "\" is not"));
    }
    if (names[i] == "none") return refuse("none must stand alone");
    if (std::count(names.begin(), names.end(), names[i]) > 1) {
      return refuse(absl::StrCat("names ", names[i], " twice"));
    }
    const bool is_of_all = names[i] == "optimizer" || names[i] == "params";
    if (is_of_all && absl::c_linear_search(names, "all")) {
      return refuse(absl::StrCat("all includes ", names[i]));
    }
  }
  return absl::OkStatus();
}

// Parameters can be offloaded only at stage 3, because below it every rank
// holds all of them. The optimizer's state can be offloaded at any stage.
absl::Status CheckState(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(CheckRange("zero", settings.zero, {0, 3}));
  TESSERA_RETURN_IF_ERROR(CheckOffload(settings.offload));
  constexpr std::string_view kCodecs[] = {"none", "fp16",         "bf16",
                                          "int8", "quantization", "lossless"};
  TESSERA_RETURN_IF_ERROR(
      CheckChoice("compression", settings.compression, kCodecs));
  constexpr std::string_view kMoments[] = {"f32", "bf16", "int8"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("moments", settings.moments, kMoments));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("bucket_bytes", settings.bucket_bytes, {1, kMany}));
  TESSERA_RETURN_IF_ERROR(CheckZeroPlusPlus(settings));
  TESSERA_RETURN_IF_ERROR(CheckGathers(settings));
  TESSERA_RETURN_IF_ERROR(CheckSpeculation(settings));
  if (OffloadChoice::Of(settings.offload).parameters && settings.zero < 3) {
    return RefuseFlag(
        "offload", settings.offload,
        absl::StrCat("needs --zero=3, because with --zero=", settings.zero,
                     " every rank computes with all parameters at any time; "
                     "give --zero=3 or --offload=",
                     WithActivationsOf(settings.offload, "optimizer")));
  }
  TESSERA_RETURN_IF_ERROR(CheckCompression(settings));
  if (settings.offload != "none" || settings.offload_dir.empty()) {
    return absl::OkStatus();
  }
  return RefuseFlag("offload_dir", settings.offload_dir,
                    "applies to offloaded data, and --offload=none; give for "
                    "example --offload=optimizer");
}

// The schedule of the learning rate.
absl::Status CheckRates(const Settings& settings) {
  constexpr std::string_view kSchedules[] = {"cosine", "linear", "wsd",
                                             "constant"};
  TESSERA_RETURN_IF_ERROR(
      CheckChoice("lr_schedule", settings.lr_schedule, kSchedules));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("warmup_steps", settings.warmup_steps, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("warmup_tokens", settings.warmup_tokens, {0, kMany}));
  if (settings.lr_schedule == "constant" && settings.min_learning_rate != -1) {
    return RefuseFlag("min_learning_rate", settings.min_learning_rate,
                      "has no effect with --lr_schedule=constant; give for "
                      "example --lr_schedule=cosine");
  }
  if (settings.decay_steps == -1) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      CheckRange("decay_steps", settings.decay_steps, {0, settings.steps}));
  if (settings.lr_schedule == "wsd") return absl::OkStatus();
  return RefuseFlag(
      "decay_steps", settings.decay_steps,
      absl::StrCat("has no effect with --lr_schedule=", settings.lr_schedule,
                   "; give --lr_schedule=wsd"));
}

absl::Status CheckOptimizer(const Settings& settings) {
  constexpr std::string_view kOptimizers[] = {"adamw", "sgd", "muon"};
  TESSERA_RETURN_IF_ERROR(
      CheckChoice("optimizer", settings.optimizer, kOptimizers));
  TESSERA_RETURN_IF_ERROR(CheckRange("momentum", settings.momentum,
                                     {.below = 1, .example = "0.95"}));
  if (settings.optimizer == "adamw" &&
      settings.momentum != Settings().momentum) {
    return RefuseFlag("momentum", settings.momentum,
                      "has no effect with --optimizer=adamw, which has "
                      "--beta1; give --optimizer=muon or sgd");
  }
  if (settings.optimizer != "muon") return absl::OkStatus();
  if (settings.lora_rank > 0) {
    return RefuseFlag(
        "optimizer", settings.optimizer,
        "is for whole matrices, which --lora_rank does not train; "
        "give --optimizer=adamw");
  }
  if (settings.moments == "int8") {
    return RefuseFlag("moments", settings.moments,
                      "has blocks, which the matrices of --optimizer=muon "
                      "would cut; give --moments=f32 or bf16");
  }
  if (settings.speculative_bytes > 0) {
    return RefuseFlag("speculative_bytes", settings.speculative_bytes,
                      "is for steps of the host, and --optimizer=muon steps "
                      "on the device; give --speculative_bytes=0");
  }
  return absl::OkStatus();
}

absl::Status CheckSpikes(const Settings& settings) {
  const double factor = settings.spike_factor;
  TESSERA_RETURN_IF_ERROR(CheckRange("spike_factor", factor,
                                     {.below = kInfinity, .example = "1.5"}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("spike_window", settings.spike_window, {1, kMostSpikeWindow}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("max_rollbacks", settings.max_rollbacks, {0, 1'000'000}));
  const Settings defaults;
  if (factor == 0) {
    if (settings.spike_window != defaults.spike_window) {
      return RefuseFlag("spike_window", settings.spike_window,
                        "has no effect without --spike_factor; give for "
                        "example --spike_factor=1.5");
    }
    return settings.max_rollbacks == defaults.max_rollbacks
               ? absl::OkStatus()
               : RefuseFlag("max_rollbacks", settings.max_rollbacks,
                            "has no effect without --spike_factor; give for "
                            "example --spike_factor=1.5");
  }
  if (factor <= 1) {
    return RefuseFlag("spike_factor", factor,
                      "must be more than 1, or 0 for no rollbacks, such as "
                      "--spike_factor=1.5");
  }
  if (settings.checkpoint_every == 0) {
    return RefuseFlag("spike_factor", factor,
                      "goes back to checkpoints, and --checkpoint_every=0 "
                      "writes none before the end; give for example "
                      "--checkpoint_every=100");
  }
  if (settings.verify) {
    return RefuseFlag("spike_factor", factor,
                      "leaves out samples, which the run on one rank of "
                      "--verify would not; give --verify=false");
  }
  return absl::OkStatus();
}

absl::Status CheckLossScale(const Settings& settings) {
  constexpr int64_t kLargest = int64_t{1} << 24;
  if (settings.loss_scale != 0) {
    TESSERA_RETURN_IF_ERROR(
        CheckRange("loss_scale", settings.loss_scale,
                   {.least = 1, .below = kLargest + 1, .example = "1024"}));
  }
  TESSERA_RETURN_IF_ERROR(CheckRange(
      "loss_scale_window", settings.loss_scale_window, {1, int64_t{1} << 40}));
  const Settings defaults;
  const bool is_half = settings.parallel.dtype == DType::kF16;
  if (!is_half && settings.loss_scale != defaults.loss_scale) {
    return RefuseFlag(
        "loss_scale", settings.loss_scale,
        "is for --dtype=fp16, as other types have the exponents of "
        "f32; give --loss_scale=0");
  }
  if (settings.loss_scale_window != defaults.loss_scale_window &&
      (!is_half || settings.loss_scale != 0)) {
    return RefuseFlag("loss_scale_window", settings.loss_scale_window,
                      "is for a dynamic scale; give --dtype=fp16 and "
                      "--loss_scale=0");
  }
  return absl::OkStatus();
}

absl::Status CheckLora(const Settings& settings) {
  constexpr std::string_view kTargets[] = {"attention", "mlp", "all"};
  const Settings defaults;
  TESSERA_RETURN_IF_ERROR(
      CheckRange("lora_rank", settings.lora_rank, {0, 1 << 16}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("lora_alpha", settings.lora_alpha,
                 {.with_least = false, .below = kInfinity, .example = "16"}));
  TESSERA_RETURN_IF_ERROR(
      CheckChoice("lora_targets", settings.lora_targets, kTargets));
  if (settings.lora_rank > 0) return absl::OkStatus();
  constexpr std::string_view kNoEffect =
      "has no effect without adapters; give a rank too, such as --lora_rank=8";
  if (settings.lora_alpha != defaults.lora_alpha) {
    return RefuseFlag("lora_alpha", settings.lora_alpha, kNoEffect);
  }
  if (settings.lora_targets != defaults.lora_targets) {
    return RefuseFlag("lora_targets", settings.lora_targets, kNoEffect);
  }
  return absl::OkStatus();
}

absl::Status CheckLearning(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(CheckOptimizer(settings));
  TESSERA_RETURN_IF_ERROR(CheckLora(settings));
  TESSERA_RETURN_IF_ERROR(CheckLossScale(settings));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("learning_rate", settings.learning_rate,
                 {.with_least = false, .below = kInfinity, .example = "3e-3"}));
  if (settings.min_learning_rate != -1) {
    TESSERA_RETURN_IF_ERROR(
        CheckRange("min_learning_rate", settings.min_learning_rate,
                   {.below = kInfinity, .example = "3e-4"}));
  }
  if (settings.min_learning_rate > settings.learning_rate) {
    return RefuseFlag(
        "min_learning_rate", settings.min_learning_rate,
        absl::StrCat(
            "must be at most --learning_rate=", settings.learning_rate,
            ", such as --min_learning_rate=", settings.learning_rate / 10));
  }
  TESSERA_RETURN_IF_ERROR(CheckRates(settings));
  TESSERA_RETURN_IF_ERROR(CheckRange("weight_decay", settings.weight_decay,
                                     {.below = kInfinity, .example = "0.1"}));
  constexpr std::string_view kDecayed[] = {"matrices", "all"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("decay", settings.decay, kDecayed));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("beta1", settings.beta1, {.below = 1, .example = "0.9"}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("beta2", settings.beta2, {.below = 1, .example = "0.95"}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("epsilon", settings.epsilon,
                 {.with_least = false, .below = kInfinity, .example = "1e-8"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("clip_norm", settings.clip_norm,
                                     {.below = kInfinity, .example = "1"}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("max_skipped_steps", settings.max_skipped_steps, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(CheckSpikes(settings));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("dropout", settings.dropout, {.below = 1, .example = "0.1"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("label_smoothing",
                                     settings.label_smoothing,
                                     {.below = 1, .example = "0.1"}));
  if (settings.expert_balance != -1) {
    TESSERA_RETURN_IF_ERROR(
        CheckRange("expert_balance", settings.expert_balance,
                   {.below = kInfinity, .example = "0.01"}));
  }
  TESSERA_RETURN_IF_ERROR(CheckRange("router_z_loss", settings.router_z_loss,
                                     {.below = kInfinity, .example = "1e-3"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("expert_capacity",
                                     settings.expert_capacity,
                                     {.below = kInfinity, .example = "1.25"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("router_bias_rate",
                                     settings.router_bias_rate,
                                     {.below = kInfinity, .example = "1e-3"}));
  return CheckRange("z_loss", settings.z_loss,
                    {.below = kInfinity, .example = "1e-4"});
}

absl::Status CheckOutputs(const Settings& settings) {
  constexpr std::string_view kFormats[] = {"text", "json"};
  TESSERA_RETURN_IF_ERROR(CheckChoice("format", settings.format, kFormats));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("checkpoint_every", settings.checkpoint_every, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("keep_checkpoints", settings.keep_checkpoints, {0, kMany}));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("sample_tokens", settings.sample_tokens, {0, 1'000'000}));
  TESSERA_RETURN_IF_ERROR(CheckRange("sample_temperature",
                                     settings.sample_temperature,
                                     {.below = kInfinity, .example = "0.8"}));
  if (settings.keep_best && settings.eval_every == 0) {
    return RefuseFlag("keep_best", "true",
                      "needs validation losses; give for example "
                      "--eval_every=100 --validation_fraction=0.05");
  }
  if ((settings.resume == "latest" || settings.resume == "best") &&
      settings.run_dir.empty()) {
    return RefuseFlag(
        "resume", settings.resume,
        absl::StrCat("selects the ",
                     settings.resume == "best" ? "best" : "newest",
                     " checkpoint of --run_dir, which is empty; "
                     "give for example --run_dir=run"));
  }
  if (!settings.prometheus_file.empty() &&
      !absl::EndsWith(settings.prometheus_file, ".prom")) {
    return RefuseFlag(
        "prometheus_file", settings.prometheus_file,
        "must end in .prom, as node_exporter reads no other files; give for "
        "example --prometheus_file=/var/lib/node_exporter/train.prom");
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
    for (const auto& other : files) {
      if (&other == &one) break;
      if (one.file.empty() || one.file != other.file) continue;
      return RefuseFlag(one.flag, one.file,
                        absl::StrCat("is also the file of --", other.flag,
                                     "; give another, such as --", one.flag,
                                     "=", one.example));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRestarts(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("max_restarts", settings.max_restarts, {0, 1'000'000}));
  if (!settings.elastic || settings.max_restarts > 0) return absl::OkStatus();
  return RefuseFlag(
      "elastic", "true",
      "has no effect with --max_restarts=0; give for example --max_restarts=3");
}

}  // namespace

bool IsScheduleFile(std::string_view schedule) {
  return absl::EndsWith(schedule, ".csv") || absl::StrContains(schedule, "/");
}

absl::Status CheckSettings(const Settings& settings) {
  TESSERA_RETURN_IF_ERROR(CheckModelAndData(settings));
  TESSERA_RETURN_IF_ERROR(CheckExecution(settings));
  TESSERA_RETURN_IF_ERROR(CheckMesh(settings));
  TESSERA_RETURN_IF_ERROR(CheckState(settings));
  TESSERA_RETURN_IF_ERROR(CheckLearning(settings));
  TESSERA_RETURN_IF_ERROR(CheckOutputs(settings));
  return CheckRestarts(settings);
}

}  // namespace tessera::train
