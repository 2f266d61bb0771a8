// RankPlace: a rank of a training run by its coordinates, and the stages of the
// pipeline that it has.
//
//   TESSERA_ASSIGN_OR_RETURN(const PipelinePlan plan,
//   PipelinePlan::Create(options)); for (const StageSpan& span :
//   plan.StagesOf(place.pp)) span.layers.size();
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PIPELINE_PLAN_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PIPELINE_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "pipeline/schedule/schedule.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tensor_parallel/sharding/index_range.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/loop/run_schedule.h"

namespace tessera::train {

struct RankPlace {
  int64_t dp = 0;
  int64_t pp = 0;
  int64_t cp = 0;
  int64_t tp = 0;

  // Tensor ranks are next to each other, then context, data and pipeline ranks.
  int64_t RankIn(const MeshSizes& mesh) const {
    return tp + mesh.tp * (cp + mesh.cp * (dp + mesh.dp * pp));
  }
  static RankPlace Of(int64_t rank, const MeshSizes& mesh);
  // "dp 0, pp 1, cp 0, tp 1".
  std::string ToString() const;

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

// A stage's part of the model.
struct StageSpan {
  int32_t stage = 0;
  tensor_parallel::IndexRange layers = {};
  bool is_first = false;  // Has the embedding.
  bool is_last = false;   // Has the head.
};

// What all ranks of a run know of its pipeline.
class PipelinePlan {
 public:
  // InvalidArgument where the options do not fit each other: as TrainRank.
  static absl::StatusOr<PipelinePlan> Create(const RunOptions& options);

  // The same for other options of as many pipeline ranks and layers, with the
  // pipeline's schedule of this one: for those who try many.
  PipelinePlan With(const RunOptions& options) const;

  const RunOptions& options() const { return options_; }
  int64_t micro_batches() const { return schedule().microbatches; }
  int64_t stages() const { return schedule().map.stages(); }
  // Of the computations of pipeline stages.
  const pipeline::Schedule& schedule() const { return stages_->schedule; }

  StageSpan SpanOf(int32_t stage) const;
  std::vector<StageSpan> StagesOf(int64_t pipeline_rank) const;

 private:
  RunOptions options_;
  std::shared_ptr<const RunStages> stages_;
};

// StageShapes: the sizes of a stage's tensors on one rank, as LlamaStage and
// the layers of tensor_parallel make them.
//
//   TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
//                            StageShapes::Of(options, place, span));

struct StageShapes {
  static absl::StatusOr<StageShapes> Of(const RunOptions& options,
                                        const RankPlace& place,
                                        const StageSpan& span);

  int64_t layers = 0;
  bool is_first = false;
  bool is_last = false;
  bool tied_here = false;  // The head has the embedding's table.
  bool sequence_parallel = false;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  DType dtype = DType::kF32;
  DType statistics = DType::kF32;

  // Of a micro-batch: of the rank's positions; and what it has of them between
  // the sharded layers.
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t rows = 0;
  // Positions of each context rank, in the order of the group.
  std::vector<int64_t> positions = {};
  int64_t context_rank = 0;

  int64_t hidden = 0;
  // Of this rank.
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t qkv = 0;           // Rows of the fused projection.
  int64_t query = 0;         // Columns of the output projection.
  int64_t gate_up = 0;       // Rows of the fused gate and up.
  int64_t intermediate = 0;  // Columns of down.
  int64_t vocabulary = 0;
  // Key and value rows that are summed over the ranks that share them; 0: none.
  int64_t shared_kv = 0;

  // Bytes.
  int64_t Values(int64_t elements) const {
    return elements * SizeInBytes(dtype);
  }
  int64_t Statistics(int64_t elements) const {
    return elements * SizeInBytes(statistics);
  }
  // Of a tensor between layers, and of one of all the rank's positions.
  int64_t row_bytes() const { return Values(rows * hidden); }
  int64_t token_bytes() const { return Values(tokens * hidden); }
};

// StageWork: the floating-point operations of a stage's passes on one rank, of
// a micro-batch, and of a whole step.
//
//   const StageWork work = StageWorkOf(shapes, options);
//   work.forward;                    // of matrix products and attention
//
// Counted as ModelConfig::ForwardFlopsPerToken counts, with what is computed
// again on top, in the backward of inputs. Context ranks have equal shares of
// the causal attention, as zigzag gives them.

struct StageWork {
  double forward = 0;
  double attention = 0;       // Of these; the backward has twice as many.
  double backward_input = 0;  // With what is computed again,
  double recomputed = 0;      // which is this.
  double backward_weight = 0;

  double all() const { return forward + backward_input + backward_weight; }
};

StageWork StageWorkOf(const StageShapes& shapes, const RunOptions& options);

// Of a step, over all ranks.
struct RunWork {
  double model = 0;       // What the model needs: 3 times the forward.
  double recomputed = 0;  // On top of it.
};
RunWork RunWorkOf(const RunOptions& options);

// The share of a step's pipeline in which a rank waits for others, the mean
// over its ranks, by pipeline::Simulate: passes take their operations, messages
// nothing.
absl::StatusOr<double> PredictBubble(const PipelinePlan& plan);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PIPELINE_PLAN_H_
