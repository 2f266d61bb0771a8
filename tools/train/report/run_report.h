// RunReport: the measurements of a run against limits, with the flag to change
// for each that is out of its limit.
//
//   const RunReport report = MakeRunReport(result, settings, prediction);
//   PrintRunReport(report, std::cout);
//
//   rule            measured                                   reported
//   communication   share of time in collectives and           above 30 %
//                   messages, the mean over ranks
//   memory          memory taken by the run's ranks, of the    above 90 %
//                   memory that was available before
//   pipeline        1 - bubble / (computation + messages +     below 70 %
//                   bubble), the mean over ranks
//   tensor          products / (products + messages of tensor  below 80 %
//                   ranks), the mean over ranks
//   straggler       computation of a rank over the median of   above 1.2
//                   the ranks with the same stages
//   overlap         share of the gathers of weights and        below 80 %
//                   reductions of gradients that overlaps
//                   computation, the mean over ranks
//   offload         share of time that a rank waits for tiers, above 10 %
//                   the maximum over ranks
//
// The time of tensor ranks' messages is estimated by their share of the
// predicted bytes along all axes (RunPrediction).
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tools/train/loop/run_result.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

enum class ReportRule {
  kCommunication,
  kMemory,
  kPipeline,
  kTensor,
  kStraggler,
  kOverlap,
  kOffload,
};

struct Measurement {
  ReportRule rule = ReportRule::kCommunication;
  double measured = 0;
  double limit = 0;
  bool broken = false;
  int64_t rank = -1;         // The rank measured; -1: all.
  std::string meaning = {};  // A sentence.
  std::string change = {};   // Flags and values; empty if not broken.
};

struct RunReport {
  int64_t steps = 0;
  double tokens_per_second = 0;
  // One per applicable rule, in their order. One per straggler, or the slowest
  // rank if there are none.
  std::vector<Measurement> measurements;

  bool all_well() const;
};

// `prediction` is for the same settings, from before the run. A result without
// ranks has no measurements.
RunReport MakeRunReport(const RunResult& result, const Settings& settings,
                        const RunPrediction& prediction);

// One line per measurement, and under each broken one the change.
void PrintRunReport(const RunReport& report, std::ostream& out);

// An object with the keys steps, tokens_per_second, all_well and measurements
// (each with rule, measured, limit, broken, rank, meaning, change). Ends with a
// line feed.
std::string RunReportAsJson(const RunReport& report);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_
