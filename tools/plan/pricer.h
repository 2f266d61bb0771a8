// Predicts the memory and the step time of a candidate.
//
//   Pricer pricer(request);
//   pricer.LeastSeconds(candidate);  // A lower bound of the step time.
//   TESSERA_ASSIGN_OR_RETURN(int64_t bytes, pricer.Memory(candidate));
//   TESSERA_ASSIGN_OR_RETURN(StepSeconds step, pricer.Time(candidate));
//
// Memory is predicted by tools/train/predict, with a dry run of the ranks that
// may need most. The time of a step is the sum of three parts:
//
//   pipeline    pipeline::Simulate of the schedule. A pass takes the time of
//               its operations (device_rates.h) and of its messages along tp
//               and ep. Messages along cp add only the time by which they
//               exceed the attention that hides them. Messages between stages
//               overlap with computation.
//   data        Gradients and weights along dp and cp, or edp for experts. The
//               messages of one micro-batch are not hidden. Messages that each
//               further micro-batch repeats (gathers at stage 3, reductions
//               with ReduceChoice::kEachMicroBatch) add only the time by which
//               they exceed the rank's computation.
//   optimizer   The state is read and written and the gradients are read once,
//               at the memory bandwidth of the device.
#ifndef TESSERA_TOOLS_PLAN_PRICER_H_
#define TESSERA_TOOLS_PLAN_PRICER_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "tools/plan/candidate.h"
#include "tools/plan/device_rates.h"
#include "tools/plan/traffic.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"

namespace tessera::plan {

struct StepSeconds {
  double pipeline = 0;
  double data = 0;
  double optimizer = 0;
  double bubble = 0;  // Idle share of pipeline time, mean over ranks.

  double total() const { return pipeline + data + optimizer; }
};

DeviceRates RatesOf(const PlanRequest& request);

// Caches results that candidates share. Not thread-safe.
class Pricer {
 public:
  // `request` must outlive the pricer.
  explicit Pricer(const PlanRequest& request)
      : request_(request),
        rates_(RatesOf(request)),
        links_(request.cluster, request.ranks) {}

  // The time of the busiest rank's passes, a lower bound of Time.
  // InvalidArgument if the schedule does not support the pipeline.
  absl::StatusOr<double> LeastSeconds(const Candidate& candidate);

  // Lower bounds of Memory and Time, up to the rounding of pools, computed from
  // the sizes of weights and the activations of layers.
  absl::StatusOr<int64_t> LeastMemory(const Candidate& candidate);
  absl::StatusOr<StepSeconds> LeastTime(const Candidate& candidate);

  // The bytes of the pipeline rank that needs most, and the times of a
  // candidate that fits, from PredictRank with enough micro-batches to fill the
  // pipeline. The gathers of further micro-batches are extrapolated from pp
  // more micro-batches.
  absl::StatusOr<int64_t> Memory(const Candidate& candidate);
  absl::StatusOr<StepSeconds> Time(const Candidate& candidate);

  // The number of ranks whose step was run dry, which takes most of the time.
  int64_t dry_runs() const { return dry_runs_; }

 private:
  using Pipeline = std::tuple<std::string, int64_t, int64_t, int64_t>;
  // The cost of a candidate's ranks, from dry runs.
  struct RankCost {
    int64_t bytes = 0;  // Of the rank that needs most.
    double data_seconds = 0;
    double optimizer_seconds = 0;
  };
  // The cost of a micro-batch for each stage, and for each pipeline rank.
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
      const std::vector<int64_t>& ranks);
  absl::StatusOr<const std::vector<double>*> GathersAgain(
      const Candidate& candidate,
      const std::vector<train::RankPrediction>& filled);
  double DataSecondsOf(const Candidate& candidate, collectives::OpKind kind,
                       const train::RankTraffic& traffic);
  double DataSeconds(const Candidate& candidate,
                     const train::RankPrediction& rank, double gathers,
                     double computed);
  absl::StatusOr<int64_t> LayerBytes(const Candidate& candidate);
  static int64_t MostInFlight(const train::PipelinePlan& plan, int64_t rank);
  double DeviceBandwidth() const;

  const PlanRequest& request_;
  const DeviceRates rates_;
  AxisLinks links_;
  int64_t dry_runs_ = 0;
  std::map<Pipeline, absl::StatusOr<train::PipelinePlan>> plans_;
  std::map<Pipeline, absl::StatusOr<pipeline::Schedule>> schedules_;
  std::map<std::string, PassCost> passes_;
  std::map<std::string, RankCost> ranks_;
  std::map<std::string, std::vector<double>> gathers_;
  std::map<std::string, int64_t> layers_;
  std::map<std::string, PipelineCost> simulated_;
};

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_PRICER_H_
