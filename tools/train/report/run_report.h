// RunReport: what held a run back, with what was measured, from where on it is
// told, and which flag to change.
//
//   const RunReport report = MakeRunReport(result, settings, prediction);
//   PrintRunReport(report, std::cout);                  // print_report.h
//
//   rule            measured                                   told
//   communication   share of time in collectives and           above 30 %
//                   messages, the mean over ranks
//   memory          what the run's ranks took of what the      above 90 %
//                   machine had left before it
//   pipeline        1 - bubble / (computation + messages +     below 70 %
//                   bubble), the mean over ranks
//   tensor          products / (products + messages of tensor  below 80 %
//                   ranks), the mean over ranks
//   straggler       computation of a rank over the median of   above 1.2
//                   the ranks with the same stages
//   overlap         of the time in which weights are gathered    below 80 %
//                   and gradients reduced, the share beside
//                   computation, the mean over ranks
//   offload         share of time that a rank waits for tiers,  above 10 %
//                   the most of any rank
//
// Messages of tensor ranks are told from others by the bytes along each axis
// (RunPrediction): their share of the bytes is taken for that of the time.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/train/loop/run_result.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct ReportLimits {
  double communication = 0.30;
  double memory = 0.90;
  double pipeline = 0.70;
  double tensor = 0.80;
  double straggler = 1.2;
  double overlap = 0.80;
  double offload = 0.10;
};

enum class ReportRule {
  kCommunication,
  kMemory,
  kPipeline,
  kTensor,
  kStraggler,
  kOverlap,
  kOffload,
};

// "communication", "memory", ...
std::string_view ReportRuleName(ReportRule rule);

// Whether the rule is broken above its limit, not below it.
constexpr bool IsUpperLimit(ReportRule rule) {
  return rule != ReportRule::kPipeline && rule != ReportRule::kTensor &&
         rule != ReportRule::kOverlap;
}

struct Measurement {
  ReportRule rule = ReportRule::kCommunication;
  double measured = 0;
  double limit = 0;
  bool broken = false;
  int64_t rank = -1;         // That it is of; -1: of all.
  std::string meaning = {};  // A sentence.
  std::string change = {};   // Flags and values; empty where all is well.
};

struct RunReport {
  int64_t steps = 0;
  double tokens_per_second = 0;
  // One for each rule that applies, in their order; of stragglers one for each,
  // or the slowest rank where there are none.
  std::vector<Measurement> measurements;

  bool all_well() const;
};

// `prediction` is of the same settings, from before the run. A result without
// ranks has no measurements.
RunReport MakeRunReport(const RunResult& result, const Settings& settings,
                        const RunPrediction& prediction,
                        const ReportLimits& limits = {});

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_REPORT_H_
