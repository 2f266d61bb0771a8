// Pricer: what a candidate needs of memory, and how long its step takes.
//
//   Pricer pricer(request);
//   pricer.LeastSeconds(candidate);              // no step is shorter
//   TESSERA_ASSIGN_OR_RETURN(int64_t bytes, pricer.Memory(candidate));
//   TESSERA_ASSIGN_OR_RETURN(StepSeconds step, pricer.Time(candidate));
//
// Memory is that of tools/train/predict, of a dry run of the ranks that may
// have most. Time, in seconds of a step:
//
//   pipeline    what pipeline::Simulate says of the schedule, where a pass
//               takes its operations over flops * efficiency, its messages
//               along tp one after the other, and what of those along cp is
//               longer than the attention that they hide behind; messages
//               between stages travel beside computations
//   data        gradients and weights along dp and cp: what one micro-batch
//               sends hides behind nothing; of what each further one sends
//               again (gathers at stage 3, reductions at each micro-batch), the
//               part that is longer than the rank's computation for it
//   optimizer   its state and the gradients, read and written once at the
//               bandwidth of the device's memory
//
// Candidates that have something in common share what was found: one thread at
// a time.
#ifndef TESSERA_TOOLS_PLAN_PRICER_H_
#define TESSERA_TOOLS_PLAN_PRICER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "tools/plan/candidate.h"
#include "tools/plan/traffic.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"

namespace tessera::plan {

struct StepSeconds {
  double pipeline = 0;
  double data = 0;
  double optimizer = 0;
  double bubble = 0;  // Share of the pipeline's time, the mean over its ranks.

  double total() const { return pipeline + data + optimizer; }
};

class Pricer {
 public:
  // `request` outlives this.
  explicit Pricer(const PlanRequest& request)
      : request_(request), links_(request.cluster, request.ranks) {}

  // The busiest rank's computations: no more than Time says. InvalidArgument
  // where the schedule cannot be of such a pipeline.
  absl::StatusOr<double> LeastSeconds(const Candidate& candidate);

  // By the sizes of weights, and by what layers hold: no more than Memory and
  // Time say, but for pools' rounding.
  absl::StatusOr<int64_t> LeastMemory(const Candidate& candidate);
  absl::StatusOr<StepSeconds> LeastTime(const Candidate& candidate);

  // What PredictRank says of the pipeline ranks that may have most, after as
  // many micro-batches as fill the pipeline: bytes, and seconds of a candidate
  // that has the memory. What they gather grows from there as it does with pp
  // micro-batches more.
  absl::StatusOr<int64_t> Memory(const Candidate& candidate);
  absl::StatusOr<StepSeconds> Time(const Candidate& candidate);

 private:
  using Pipeline = std::tuple<std::string, int64_t, int64_t, int64_t>;
  // Of a candidate's ranks, by dry runs.
  struct RankCost {
    int64_t bytes = 0;  // Of the rank that needs most.
    double data_seconds = 0;
    double optimizer_seconds = 0;
  };
  // What a layer holds of its first micro-batch in flight, and of each more.
  struct LayerCost {
    int64_t first = 0;
    int64_t next = 0;
  };
  // Of a micro-batch: of stages, and of pipeline ranks.
  struct PassCost {
    std::vector<pipeline::StageCosts> stages;
    std::vector<double> ranks;
  };

  struct PipelineCost {
    double seconds = 0;
    double bubble = 0;
  };

  absl::StatusOr<const train::PipelinePlan*> PlanOf(const Candidate& candidate);
  absl::StatusOr<const pipeline::Schedule*> ScheduleOf(
      const Candidate& candidate);
  absl::StatusOr<const PipelineCost*> Simulated(const Candidate& candidate);
  absl::StatusOr<const PassCost*> PassesOf(const Candidate& candidate);
  absl::StatusOr<pipeline::StageCosts> StageCost(
      const Candidate& candidate, const train::StageShapes& shapes);
  absl::StatusOr<const RankCost*> RanksOf(const Candidate& candidate);
  absl::StatusOr<std::vector<train::RankPrediction>> RunDry(
      const Candidate& candidate, int64_t micro_batches,
      const std::vector<int64_t>& ranks) const;
  absl::StatusOr<const std::vector<double>*> GathersAgain(
      const Candidate& candidate,
      const std::vector<train::RankPrediction>& filled);
  double DataSeconds(const Candidate& candidate,
                     const train::RankPrediction& rank, double gathers,
                     double computed);
  absl::StatusOr<const LayerCost*> LayerOf(const Candidate& candidate);
  static int64_t MostInFlight(const train::PipelinePlan& plan, int64_t rank);
  double DeviceBandwidth() const;

  const PlanRequest& request_;
  AxisLinks links_;
  std::map<Pipeline, absl::StatusOr<train::PipelinePlan>> plans_;
  std::map<Pipeline, absl::StatusOr<pipeline::Schedule>> schedules_;
  std::map<std::string, PassCost> passes_;
  std::map<std::string, RankCost> ranks_;
  std::map<std::string, std::vector<double>> gathers_;
  std::map<std::string, LayerCost> layers_;
  std::map<std::string, PipelineCost> simulated_;
};

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_PRICER_H_
