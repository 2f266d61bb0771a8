// RunReport: the measurements of a run against limits, with the flag to change
// for each that is out of its limit.
//
//   const RunReport report = MakeRunReport(result, settings, prediction);
//   PrintRunReport(report, std::cout);
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tools/train/predict/message_table.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// What is measured; means are over the ranks. The limits are in run_report.cc.
enum class ReportRule {
  // The mean share of time in collectives and messages.
  kCommunication,
  // The memory that the run's ranks took, of what was available before.
  kMemory,
  // The mean of 1 - bubble / (computation + messages + bubble).
  kPipeline,
  // The mean of products / (products + messages of tensor ranks). The time of
  // these messages is estimated by their share of the predicted bytes along all
  // axes (RunPrediction).
  kTensor,
  // The computation of a rank over the median of the ranks with its stages.
  kStraggler,
  // The mean share of the gathers of weights and reductions of gradients that
  // overlaps computation.
  kOverlap,
  // The largest share of time that a rank waits for tiers.
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
  // The rank that sends most bytes by prediction, and its messages in a step as
  // predicted and in the run as measured.
  int64_t busiest_rank = 0;
  RankTraffic predicted = RankTraffic({});
  MeasuredMessages measured;

  bool all_well() const;
};

// `prediction` is for the same settings, from before the run. A result without
// ranks has no measurements.
RunReport MakeRunReport(const RunResult& result, const Settings& settings,
                        const RunPrediction& prediction);

// One line per measurement, under each broken one the change, and the messages.
void PrintRunReport(const RunReport& report, std::ostream& out);

// An object with the keys steps, tokens_per_second, all_well, measurements
// (each with rule, measured, limit, broken, rank, meaning, change) and messages
// (rank, steps, and axes: axis, ranks, operation, and count and bytes as
// predicted for a step and as measured in all steps; mean_ns and busbw_GBps are
// null on a device). Ends with a line feed.
std::string RunReportAsJson(const RunReport& report);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_
