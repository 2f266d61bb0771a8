#include "tools/train/settings/run_options_from.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/moment.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tools/cli/cli.h"
#include "tools/train/loop/run_schedule.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/user_path.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {
namespace {

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

zero3::ShardedStateOptions StateOf(const Settings& settings) {
  zero3::ShardedStateOptions state;
  state.stage = static_cast<int>(settings.zero);
  state.bucket_bytes = settings.bucket_bytes;
  state.persistence_threshold = settings.persistence_threshold;
  state.quantized_weights = settings.quantized_weights;
  state.quantized_gradients = settings.quantized_gradients;
  state.hpz_partition_size = settings.hpz_partition_size;
  state.adamw = AdamWOf(settings);
  state.clip_norm = settings.clip_norm;
  return state;
}

double LeastRateOf(const Settings& settings) {
  return settings.min_learning_rate == -1 ? settings.learning_rate / 10
                                          : settings.min_learning_rate;
}

absl::Status SetSchedule(const Settings& settings, RunOptions& options) {
  options.schedule = settings.parallel.schedule;
  if (!IsScheduleFile(settings.parallel.schedule)) return absl::OkStatus();
  options.schedule = "file";
  TESSERA_ASSIGN_OR_RETURN(
      options.schedule_table,
      ReadFile(UserPath(settings.parallel.schedule), kMaxScheduleBytes),
      tools::FlagError("schedule", settings.parallel.schedule, _));
  return absl::OkStatus();
}

// What can only be checked with the model, by the flag that is to be changed.
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

}  // namespace

absl::StatusOr<RunOptions> RunOptionsFrom(
    const Settings& settings, const model_files::ModelConfig& model) {
  TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
  RunOptions options;
  options.mesh = settings.parallel.mesh;
  options.model = model;
  options.dtype = settings.parallel.dtype;
  options.batch = settings.batch;
  options.micro_batch = settings.parallel.micro_batch;
  options.length = settings.length;
  options.steps = settings.steps;
  options.seed = static_cast<uint64_t>(settings.seed);
  options.learning_rate = {.peak = settings.learning_rate,
                           .least = LeastRateOf(settings),
                           .warmup_steps = settings.warmup_steps,
                           .total_steps = settings.steps};
  TESSERA_RETURN_IF_ERROR(SetSchedule(settings, options));
  options.gather_ahead = settings.gather_ahead;
  options.max_gathered_bytes = settings.max_gathered_bytes;
  options.reduce = settings.reduce == "each"   ? ReduceChoice::kEachMicroBatch
                   : settings.reduce == "last" ? ReduceChoice::kLastMicroBatch
                                               : ReduceChoice::kAuto;
  options.chunks = settings.parallel.chunks;
  options.sequence_parallel = settings.sequence_parallel;
  options.zigzag = settings.context == "zigzag";
  options.recompute = RecomputeOf(settings.recompute);
  options.state = StateOf(settings);
  TESSERA_ASSIGN_OR_RETURN(options.state.moments,
                           offload::ParseMomentFormat(settings.moments));
  TESSERA_RETURN_IF_ERROR(CheckPlan(settings, options));
  return options;
}

}  // namespace tessera::train
