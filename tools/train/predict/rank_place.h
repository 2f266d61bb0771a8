// RankPlace: a rank of a training run by its coordinates, and the stages of the
// pipeline that it has.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPlan plan, RunPlan::Create(options));
//   for (const StageSpan& span : plan.StagesOf(place.pp)) span.layers.size();
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_RANK_PLACE_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_RANK_PLACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
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
class RunPlan {
 public:
  // InvalidArgument where the options do not fit each other: as TrainRank.
  static absl::StatusOr<RunPlan> Create(const RunOptions& options);

  // The same for other options of as many pipeline ranks and layers, with the
  // pipeline's schedule of this one: for those who try many.
  RunPlan With(const RunOptions& options) const;

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

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_RANK_PLACE_H_
