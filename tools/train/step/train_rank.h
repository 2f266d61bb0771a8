// One rank of a training run, step by step.
//
//   TESSERA_ASSIGN_OR_RETURN(auto rank, TrainRank::Create(world, options,
//                                                         samples, ops));
//   for (int64_t step = 0; step < options.steps; ++step) {
//     TESSERA_ASSIGN_OR_RETURN(StepRecord record, rank->Step());
//   }
//
// Every rank of the world makes the same calls. An error on one rank reaches
// all others (collectives/communicator.h). One thread at a time.
#ifndef TESSERA_TOOLS_TRAIN_STEP_TRAIN_RANK_H_
#define TESSERA_TOOLS_TRAIN_STEP_TRAIN_RANK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/groups/group_manager.h"
#include "offload/codec/codec.h"
#include "pipeline/execute/executor.h"
#include "pipeline/execute/interleaver.h"
#include "pipeline/execute/stage.h"
#include "pipeline/simulate/timeline.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/text/samples.h"
#include "tools/train/model/activation_store.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/model/sharded_model.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/run_schedule.h"
#include "tools/train/step/qk_clip.h"
#include "tools/train/step/run_progress.h"
#include "zero3/state/shard_store.h"

namespace tessera::train {

class StepTokens;

// Times within a rank's last step, in MonotonicNanos.
struct StepTimes {
  int64_t begin = 0;
  // The common start of the pipeline, the origin of executor().timeline().
  int64_t pipeline = 0;
  int64_t update_begin = 0;  // The optimizer step.
  int64_t update_end = 0;
  int64_t end = 0;
  int64_t data_ns = 0;  // For reading tokens and masks, before and in passes.
};

// One rank's part of its last step; a StepRecord covers all ranks.
struct StepFinding {
  double loss = 0;         // The share of this rank's samples in the loss.
  int64_t non_finite = 0;  // See zero3::UpdateReport.
};

class TrainRank {
 public:
  // A collective of the world. `world`, `samples` and `ops` must outlive this.
  // Layers and state compute on the queue of `ops` and are in the memory of its
  // device; `world` must be a communicator for this memory. InvalidArgument if
  // the options contradict each other or the world's size.
  static absl::StatusOr<std::unique_ptr<TrainRank>> Create(
      collectives::Communicator& world, const RunOptions& options,
      const text::Samples& samples, tensor_parallel::Ops& ops);

  // Creates a rank with the result of RunSchedule::Create(options).
  static absl::StatusOr<std::unique_ptr<TrainRank>> Create(
      collectives::Communicator& world, const RunOptions& options,
      RunSchedule schedule, const text::Samples& samples,
      tensor_parallel::Ops& ops);

  ~TrainRank();
  TrainRank(const TrainRank&) = delete;
  TrainRank& operator=(const TrainRank&) = delete;

  // Runs the next step. A collective of the world. An infinite or NaN loss is
  // not an error.
  absl::StatusOr<StepRecord> Step();

  // Returns the mean loss over the first `batches` batches of the samples of
  // one use. The samples are the same on every mesh. Runs only forwards,
  // between steps, and does not affect later steps. A collective of the world.
  // OutOfRange if there are fewer batches.
  absl::StatusOr<double> Evaluate(
      int64_t batches, text::SampleUse use = text::SampleUse::kValidation);

  // With RunOptions::dpo_beta, before the first step: finds the log-probability
  // of every completion of the data with the current weights, which thereby
  // become the reference. A collective of the world.
  absl::Status ComputeReferences();
  // Instead, by number of the sample, what another rank of the run or an
  // earlier run computed. InvalidArgument for another number of samples.
  absl::Status SetReferences(std::vector<double> references);
  const std::vector<double>& references() const;

  // The groups that this rank is in. Not owned.
  struct Groups {
    collectives::Communicator* tp = nullptr;
    collectives::Communicator* cp = nullptr;
    collectives::Communicator* pp = nullptr;
    collectives::Communicator* data = nullptr;   // dp and cp.
    collectives::Communicator* shard = nullptr;  // dp_shard and cp.
    // dp_replicate; null if the state is not replicated.
    collectives::Communicator* replicas = nullptr;
    collectives::Communicator* model = nullptr;  // tp and pp.
    // Null without expert parallelism. The ranks that divide the experts of a
    // layer, the ranks that hold the same experts, and the ranks that together
    // hold all experts of the model (tp, pp and ep).
    collectives::Communicator* ep = nullptr;
    collectives::Communicator* edp = nullptr;
    collectives::Communicator* expert_model = nullptr;
  };
  const Groups& groups() const { return groups_; }
  collectives::Communicator& world() { return manager_->world(); }

  ShardedModel& model() { return *model_; }
  // Null without fp8.
  tensor_parallel::Fp8Scaling* fp8() { return layers_->fp8(); }
  std::vector<LlamaLayers::Fp8Layers> fp8_layers() const {
    return layers_->fp8_layers();
  }
  zero3::ShardedState& state() { return model_->state(); }
  // The executor of the last step.
  const pipeline::Executor& executor() const { return *plan_->executor; }
  // The timeline of all pipeline ranks. A collective of them.
  absl::StatusOr<pipeline::Timeline> GatherTimeline() {
    return plan_->executor->GatherTimeline();
  }
  const RunOptions& options() const { return options_; }
  // The schedule for the whole batch.
  const RunSchedule& schedule() const { return whole_.schedule; }
  const StepTimes& times() const { return times_; }  // Of the last step.
  const StepFinding& finding() const { return finding_; }

  // The bytes of the stages' activation pools plus the peak bytes of tensors
  // between stages in the last step. The near memory of activations in a tier
  // is counted as buffers in state().usage().
  int64_t activation_bytes() const;
  // The number of operations that a step replays as one; 0 if none have been
  // captured.
  int64_t graph_operations() const {
    const DeviceGraph* const graph = plan_->executor->graph();
    return graph == nullptr ? 0 : graph->operations();
  }
  // The traffic of state and activations with tiers, over all steps.
  zero3::ShardTraffic offload_traffic() const;

  // The number of steps taken, which is the index of the next one.
  int64_t steps() const { return progress_.steps; }
  const RunProgress& progress() const { return progress_; }
  // Continues from `progress`, when a checkpoint is restored.
  void SetProgress(RunProgress progress) { progress_ = std::move(progress); }
  // The index of the first sample of step `step`, provided that no further
  // samples are skipped: the number of samples read or skipped before it.
  int64_t FirstSampleOf(int64_t step) const {
    return options_.batches().SamplesBefore(step) + progress_.skipped_samples;
  }

 private:
  // Interleaves pairs of passes: one computes while the other exchanges rows.
  struct Turns final : tensor_parallel::Meanwhile {
    bool has_work() const override { return interleaver.has_other(); }
    void Work() override { interleaver.Yield(); }
    pipeline::Interleaver interleaver;
  };

  // The schedule and executor for steps of one batch size.
  struct StepPlan {
    int64_t batch = 0;  // Sequences, over all ranks.
    RunSchedule schedule;
    std::vector<size_t> step_gathers;  // Windows in order.
    std::vector<size_t> evaluation_gathers;
    std::unique_ptr<ActivationStore> activations;  // Null: not offloaded.
    std::unique_ptr<pipeline::Executor> executor;
  };

  explicit TrainRank(const RunOptions& options);

  absl::Status JoinGroups(collectives::Communicator& world);
  absl::Status PlanData(const text::Samples& samples);
  absl::Status CreateLayers(tensor_parallel::Ops& ops);
  // True if the embedding and the head are on one rank.
  bool SharesTable() const;
  std::string KeyPrefix() const;
  size_t WindowOf(int32_t stage) const;
  bool IsSecondCopy(int32_t stage) const;
  static absl::Status LeaveToFirstCopy(const ParameterWindow& window);
  absl::Status CreateModel();
  absl::Status CheckGraphs() const;
  absl::StatusOr<bool> UsesGraphs() const;
  absl::Status CreateActivationStore(StepPlan& plan);
  absl::Status CreateStages();
  absl::Status CreateExecutor(StepPlan& plan);
  absl::Status ChoosePlan();
  absl::Status BeginStep();
  int64_t PipelineBegin() const;
  absl::StatusOr<double> MeanOverData(double loss);
  // Runs the forwards of a batch; returns its loss.
  absl::StatusOr<double> ForwardBatch(text::SampleUse use, int64_t first);
  absl::Status AddRewards(StepRecord& record);

  // Members refer to earlier ones.
  RunOptions options_;
  std::unique_ptr<collectives::GroupManager> manager_;
  Groups groups_;
  int64_t data_rank_ = 0;  // Along dp.
  std::unique_ptr<StepTokens> tokens_;
  std::unique_ptr<Turns> turns_;  // Null without expert ranks.
  std::unique_ptr<LlamaLayers> layers_;
  std::unique_ptr<QkClip> qk_clip_;
  std::unique_ptr<const offload::Codec> base_codec_;  // Null: not quantized.
  std::unique_ptr<ShardedModel> model_;
  std::unique_ptr<LlamaPasses> passes_;
  std::vector<std::unique_ptr<pipeline::Stage>> stages_;  // By window.
  StepPlan whole_;    // For the whole batch and for evaluations.
  StepPlan smaller_;  // For the current batch during warm-up.
  StepPlan* plan_ = &whole_;
  zero3::ShardTraffic earlier_traffic_;  // Activations; earlier plans.
  RunProgress progress_;
  double mean_loss_ = 0;
  std::optional<collectives::PreparedOperation> sum_loss_;
  int64_t boundary_bytes_ = 0;  // The peak of the last step.
  StepTimes times_;
  StepFinding finding_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_STEP_TRAIN_RANK_H_
