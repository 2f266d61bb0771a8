// The stages of a run's pipeline and their ranks (PipelinePlan), the sizes of a
// stage's tensors (StageShapes), and its floating-point operations (StageWork).
//
//   TESSERA_ASSIGN_OR_RETURN(const PipelinePlan plan,
//                            PipelinePlan::Create(options));
//   const RankPlace place = {.dp = 1, .pp = 0};
//   for (const StageSpan& span : plan.StagesOf(place.pp)) {
//     TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
//                              StageShapes::Of(options, place, span));
//     const StageWork work = StageWorkOf(shapes, options);
//   }
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PIPELINE_PLAN_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PIPELINE_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/run_schedule.h"

namespace tessera::train {

// A rank's coordinates in the mesh.
struct RankPlace {
  int64_t dp = 0;
  int64_t pp = 0;
  int64_t cp = 0;
  int64_t tp = 0;

  // Converts coordinates to a rank by the order of the mesh's axes, and back.
  int64_t RankIn(const MeshSizes& mesh) const;
  static RankPlace Of(int64_t rank, const MeshSizes& mesh);

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

// A stage's part of the model.
struct StageSpan {
  int32_t stage = 0;
  tensor_parallel::IndexRange layers = {};
  bool is_first = false;  // Has the embedding.
  bool is_last = false;   // Has the head.
};

// The pipeline of a run. The same on all ranks.
class PipelinePlan {
 public:
  // InvalidArgument, like TrainRank::Create, if the options contradict each
  // other.
  static absl::StatusOr<PipelinePlan> Create(const RunOptions& options);

  // Returns a plan for other options with the same number of pipeline ranks and
  // layers. It reuses this plan's schedule, so that many options can be tried.
  PipelinePlan With(const RunOptions& options) const;

  const RunOptions& options() const { return options_; }
  int64_t micro_batches() const { return schedule().microbatches; }
  int64_t stages() const { return schedule().map.stages(); }
  // The computations of the pipeline stages.
  const pipeline::Schedule& schedule() const { return stages_->schedule; }

  StageSpan SpanOf(int32_t stage) const;
  std::vector<StageSpan> StagesOf(int64_t pipeline_rank) const;

 private:
  RunOptions options_;
  std::shared_ptr<const RunStages> stages_;
};

// The mixtures of experts of a stage on one rank, with a balanced load.
struct MixtureShapes {
  int64_t layers = 0;     // In the stage; if 0, all other members are 0.
  int64_t per_token = 0;  // Experts per token.
  int64_t experts = 0;    // Experts per layer, on all ranks.
  int64_t ranks = 1;      // Ranks that divide the experts.
  int64_t units = 0;      // Hidden units of an expert on this tensor rank.
  int64_t shared = 0;     // Hidden units of the shared expert.
  bool has_shared = false;
};

// The sizes of a stage's tensors on one rank, as the layers of tensor_parallel
// create them.
struct StageShapes {
  static absl::StatusOr<StageShapes> Of(const RunOptions& options,
                                        const RankPlace& place,
                                        const StageSpan& span);

  int64_t layers = 0;
  bool is_first = false;
  bool is_last = false;
  bool tied_here = false;  // The head uses the embedding's table.
  bool sequence_parallel = false;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  DType dtype = DType::kF32;
  DType statistics = DType::kF32;

  // Per micro-batch: the tokens of the rank's positions, and the rows of these
  // that it holds between the sharded layers.
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t rows = 0;
  // The positions of each context rank, in the order of the group.
  std::vector<int64_t> positions = {};
  int64_t context_rank = 0;

  int64_t hidden = 0;
  // The following are on this rank.
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  // Rows of the fused projection; of latent attention: of one that takes as
  // many operations.
  int64_t qkv = 0;
  int64_t query = 0;  // Columns of the output projection.
  // The widths of the tensors that the attention's column-parallel layers
  // gather and whose gradients they sum; of latent attention also of the
  // rotated elements of keys, which are not needed for gradients of weights.
  std::vector<int64_t> inputs = {};
  int64_t shared_rope = 0;
  // Rows of the fused gate and up, and columns of down. With mixtures of
  // experts: the rows and columns used per token, averaged over the layers.
  int64_t gate_up = 0;
  int64_t intermediate = 0;
  int64_t dense_units = 0;  // Hidden units of layers that are not mixtures.
  MixtureShapes mixture = {};
  int64_t vocabulary = 0;
  // Key and value rows that several ranks share, which sum their gradients.
  int64_t shared_kv = 0;

  // The bytes of tensors of values and of statistics.
  int64_t Values(int64_t elements) const {
    return elements * SizeInBytes(dtype);
  }
  int64_t Statistics(int64_t elements) const {
    return elements * SizeInBytes(statistics);
  }
  // The bytes of a tensor between layers, and of a tensor with all positions of
  // the rank.
  int64_t row_bytes() const { return Values(rows * hidden); }
  int64_t token_bytes() const { return Values(tokens * hidden); }
};

// FailedPrecondition, with the size and the remedy, unless a GPU can multiply
// the linear layers of every rank in fp8: all sizes must be multiples of 16.
absl::Status CheckFp8Sizes(const RunOptions& options);

// The floating-point operations of a stage's passes on one rank for one
// micro-batch, counted like ModelConfig::ForwardFlopsPerToken. Recomputation is
// included in the backward of inputs. Context ranks have equal shares of the
// causal attention, as in the zigzag layout.
struct StageWork {
  double forward = 0;
  double attention = 0;  // Part of forward; the backward needs twice as many.
  double backward_input = 0;  // Includes `recomputed`.
  double recomputed = 0;
  double backward_weight = 0;

  double all() const { return forward + backward_input + backward_weight; }
};

StageWork StageWorkOf(const StageShapes& shapes, const RunOptions& options);

// The operations of a step over all ranks.
struct RunWork {
  double model = 0;       // Required by the model: 3 times the forward.
  double recomputed = 0;  // Additional operations.
};
RunWork RunWorkOf(const RunOptions& options);

// Simulates a step of the pipeline (pipeline::Simulate). Times are proportional
// to operations, in units of 1e9 operations on one rank; messages take no time.
// Without memory.
absl::StatusOr<pipeline::Timeline> PredictTimeline(const PipelinePlan& plan);

// The share of PredictTimeline's step in which a pipeline rank waits for
// others, averaged over the ranks.
absl::StatusOr<double> PredictBubble(const PipelinePlan& plan);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PIPELINE_PLAN_H_
