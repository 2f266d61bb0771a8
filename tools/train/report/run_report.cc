#include "tools/train/report/run_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/train/report/report_changes.h"

namespace tessera::train {
namespace {

// The mean over ranks.
template <typename Value>
double Mean(const std::vector<RankResult>& ranks, Value value) {
  double sum = 0;
  for (const RankResult& rank : ranks) sum += value(rank.shares);
  return sum / static_cast<double>(ranks.size());
}

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 1; }

// Of the bytes that ranks send, those along tp.
double TensorShare(const RunPrediction& prediction) {
  double tensor = 0, all = 0;
  for (const RankPrediction& rank : prediction.ranks) {
    tensor += rank.traffic.SentAlong(TrafficAxis::kTp);
    for (const TrafficAxis axis : kTrafficAxes) {
      all += rank.traffic.SentAlong(axis);
    }
  }
  return all > 0 ? tensor / all : 0;
}

class Reporter {
 public:
  Reporter(const RunResult& result, const Settings& settings,
           const RunPrediction& prediction, const ReportLimits& limits)
      : result_(result),
        settings_(settings),
        prediction_(prediction),
        limits_(limits) {}

  RunReport Run() {
    report_.steps = static_cast<int64_t>(result_.steps.size());
    report_.tokens_per_second = result_.tokens_per_second;
    if (result_.ranks.empty()) return std::move(report_);
    if (result_.ranks.size() > 1) ReportCommunication();
    ReportMemory();
    if (prediction_.mesh.pp > 1) ReportPipeline();
    if (prediction_.mesh.tp > 1) ReportTensor();
    ReportStragglers();
    ReportOverlap();
    if (settings_.offload != "none") ReportOffload();
    return std::move(report_);
  }

 private:
  void Add(ReportRule rule, double measured, double limit, std::string meaning,
           std::string change, int64_t rank = -1) {
    const bool broken =
        IsUpperLimit(rule) ? measured > limit : measured < limit;
    report_.measurements.push_back({rule, measured, limit, broken, rank,
                                    std::move(meaning),
                                    broken ? std::move(change) : ""});
  }

  void ReportCommunication() {
    const double share = Mean(
        result_.ranks, [](const TimeShares& of) { return of.communication; });
    Add(ReportRule::kCommunication, share, limits_.communication,
        absl::StrFormat("ranks spend %.1f %% of their time in messages",
                        100 * share),
        ChangeForCommunication(settings_, prediction_));
  }

  void ReportMemory() {
    int64_t taken = 0;
    for (const RankResult& rank : result_.ranks) {
      taken += rank.memory.peak_resident - rank.memory.resident_before;
      if (result_.memory_is_shared) break;
    }
    const auto room = static_cast<double>(prediction_.room.bytes);
    if (room <= 0) return;
    const double share = static_cast<double>(taken) / room;
    Add(ReportRule::kMemory, share, limits_.memory,
        absl::StrFormat("the run took %.1f %% of the memory that the %s had "
                        "left",
                        100 * share, prediction_.room.limit),
        ChangeForMemory(settings_, prediction_));
  }

  void ReportPipeline() {
    const double efficiency = Mean(result_.ranks, [](const TimeShares& of) {
      const double busy = of.compute + of.communication;
      return Ratio(busy, busy + of.bubble);
    });
    Add(ReportRule::kPipeline, efficiency, limits_.pipeline,
        absl::StrFormat("pipeline ranks work %.1f %% of the time in which they "
                        "could (the schedule allows %.1f %%)",
                        100 * efficiency, 100 * (1 - prediction_.bubble)),
        ChangeForPipeline(settings_, prediction_));
  }

  void ReportTensor() {
    const double tensor = TensorShare(prediction_);
    const double efficiency = Mean(result_.ranks, [&](const TimeShares& of) {
      return Ratio(of.products, of.products + tensor * of.communication);
    });
    Add(ReportRule::kTensor, efficiency, limits_.tensor,
        absl::StrFormat("of products and messages of tensor ranks, %.1f %% are "
                        "products",
                        100 * efficiency),
        ChangeForTensor(settings_, prediction_));
  }

  // Among the ranks that have the same stages.
  void ReportStragglers() {
    std::map<int64_t, std::vector<std::pair<double, int64_t>>> by_stage;
    for (size_t r = 0; r < result_.ranks.size(); ++r) {
      const auto rank = static_cast<int64_t>(r);
      const int64_t pp = RankPlace::Of(rank, prediction_.mesh).pp;
      by_stage[pp].push_back({result_.ranks[r].shares.compute, rank});
    }
    Measurement slowest;
    for (auto& [stage, ranks] : by_stage) {
      std::sort(ranks.begin(), ranks.end());
      const double median = ranks[(ranks.size() - 1) / 2].first;
      for (const auto& [compute, rank] : ranks) {
        const double ratio = Ratio(compute, median);
        if (ratio > limits_.straggler) {
          AddStraggler(rank, ratio);
        } else if (ratio > slowest.measured) {
          slowest.measured = ratio;
          slowest.rank = rank;
        }
      }
    }
    const bool has_any =
        !report_.measurements.empty() &&
        report_.measurements.back().rule == ReportRule::kStraggler;
    if (!has_any && slowest.rank >= 0 && result_.ranks.size() > 1) {
      AddStraggler(slowest.rank, slowest.measured);
    }
  }

  void AddStraggler(int64_t rank, double ratio) {
    Add(ReportRule::kStraggler, ratio, limits_.straggler,
        absl::StrFormat("rank %d computes %.2f times as long as the median of "
                        "the ranks with its stages",
                        rank, ratio),
        ChangeForStraggler(rank), rank);
  }

  // What takes a hundredth of a step is not worth hiding.
  void ReportOverlap() {
    const double traffic = Mean(
        result_.ranks, [](const TimeShares& of) { return of.state_traffic; });
    if (traffic == 0) return;
    const double hidden = Mean(
        result_.ranks, [](const TimeShares& of) { return of.state_hidden; });
    const double share = Ratio(hidden, traffic);
    Add(ReportRule::kOverlap, share, traffic < 0.01 ? 0 : limits_.overlap,
        absl::StrFormat(
            "weights are gathered and gradients reduced for %.1f %% of the "
            "time, %.1f %% of that beside computation",
            100 * traffic, 100 * share),
        ChangeForOverlap(settings_));
  }

  void ReportOffload() {
    const auto most =
        std::max_element(result_.ranks.begin(), result_.ranks.end(),
                         [](const RankResult& a, const RankResult& b) {
                           return a.shares.offload < b.shares.offload;
                         });
    const double share = most->shares.offload;
    const auto rank = static_cast<int64_t>(most - result_.ranks.begin());
    Add(ReportRule::kOffload, share, limits_.offload,
        absl::StrFormat("rank %d waits %.1f %% of its time for offloaded state",
                        rank, 100 * share),
        ChangeForOffload(settings_), rank);
  }

  const RunResult& result_;
  const Settings& settings_;
  const RunPrediction& prediction_;
  const ReportLimits& limits_;
  RunReport report_;
};

}  // namespace

std::string_view ReportRuleName(ReportRule rule) {
  switch (rule) {
    case ReportRule::kCommunication:
      return "communication";
    case ReportRule::kMemory:
      return "memory";
    case ReportRule::kPipeline:
      return "pipeline";
    case ReportRule::kTensor:
      return "tensor";
    case ReportRule::kStraggler:
      return "straggler";
    case ReportRule::kOverlap:
      return "overlap";
    case ReportRule::kOffload:
      return "offload";
  }
  return "none";
}

bool RunReport::all_well() const {
  return std::none_of(measurements.begin(), measurements.end(),
                      [](const Measurement& one) { return one.broken; });
}

RunReport MakeRunReport(const RunResult& result, const Settings& settings,
                        const RunPrediction& prediction,
                        const ReportLimits& limits) {
  return Reporter(result, settings, prediction, limits).Run();
}

}  // namespace tessera::train
