#include "tools/train/report/run_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {

namespace {

// The mesh with half as many ranks along one axis and twice the data ranks.
std::string HalfMesh(MeshSizes mesh, int64_t MeshSizes::*axis) {
  mesh.*axis /= 2;
  mesh.dp *= 2;
  return absl::StrCat("--mesh=", mesh.ToString());
}

std::string LargerBatch(const Settings& settings, int64_t factor) {
  return absl::StrCat("--batch=", settings.batch * factor);
}

std::string ChangeForDataRanks(const Settings& settings) {
  const std::string batch =
      absl::StrCat(LargerBatch(settings, 2),
                   ", which sums gradients once for twice as many tokens");
  return settings.zero == 3 ? absl::StrCat(
                                  "--zero=1, which gathers weights only after "
                                  "the optimizer, if memory allows; or ",
                                  batch)
                            : batch;
}

// The axis along which the ranks send most, by prediction.
TrafficAxis BusiestAxis(const RunPrediction& prediction) {
  TrafficAxis busiest = TrafficAxis::kDp;
  double most = -1;
  for (const TrafficAxis axis : kTrafficAxes) {
    double sent = 0;
    for (const RankPrediction& rank : prediction.ranks) {
      sent += rank.traffic.SentAlong(axis);
    }
    if (sent <= most) continue;
    most = sent;
    busiest = axis;
  }
  return busiest;
}

// Each of these returns a sentence with flags and values for these settings.
std::string ChangeForCommunication(const Settings& settings,
                                   const RunPrediction& prediction) {
  const MeshSizes& mesh = prediction.mesh;
  const TrafficAxis axis = BusiestAxis(prediction);
  const std::string where =
      absl::StrCat("most bytes go along ", TrafficAxisName(axis), ": ");
  if (axis == TrafficAxis::kTp && mesh.tp % 2 == 0) {
    return absl::StrCat(where, HalfMesh(mesh, &MeshSizes::tp));
  }
  if (axis == TrafficAxis::kCp && mesh.cp % 2 == 0) {
    return absl::StrCat(where, HalfMesh(mesh, &MeshSizes::cp));
  }
  if (axis == TrafficAxis::kPp && mesh.pp % 2 == 0) {
    return absl::StrCat(where, HalfMesh(mesh, &MeshSizes::pp));
  }
  return absl::StrCat(where, ChangeForDataRanks(settings));
}

std::string ChangeForMemory(const Settings& settings,
                            const RunPrediction& prediction) {
  const MeshSizes& mesh = prediction.mesh;
  // The host has what is offloaded.
  if (prediction.on_gpu) {
    return settings.offload != "none" && settings.offload_dir.empty()
               ? "--offload_dir=DIR, a directory on a fast disk"
               : "fewer ranks on this machine";
  }
  if (settings.recompute == "none") {
    return "--recompute=selective, or --recompute=full for still less";
  }
  if (settings.zero < 3 && mesh.dp * mesh.cp > 1) {
    return "--zero=3, which partitions weights and gradients too";
  }
  if (settings.parallel.micro_batch > 1) {
    return absl::StrCat("--micro_batch=", settings.parallel.micro_batch / 2);
  }
  if (settings.recompute != "full") return "--recompute=full";
  if (settings.offload == "none" || settings.offload_dir.empty()) {
    return "--offload=optimizer --offload_dir=DIR, a directory on a fast disk";
  }
  return absl::StrCat("--length=", settings.length / 2,
                      ", or more ranks on more machines");
}

std::string ChangeForPipeline(const Settings& settings,
                              const RunPrediction& prediction) {
  const int64_t pp = prediction.mesh.pp;
  if (prediction.micro_batches < 4 * pp) {
    if (settings.parallel.micro_batch > 1) {
      return absl::StrCat("--micro_batch=", settings.parallel.micro_batch / 2,
                          ", which makes twice as many micro-batches");
    }
    const int64_t batch =
        4 * pp * prediction.mesh.dp * settings.parallel.micro_batch;
    return absl::StrCat("--batch=", batch, ", which makes ", 4 * pp,
                        " micro-batches of a pipeline of ", pp);
  }
  if (settings.parallel.schedule == "zb_h1" ||
      settings.parallel.schedule == "zb_v") {
    return HalfMesh(prediction.mesh, &MeshSizes::pp);
  }
  return "--schedule=zb_h1, which fills bubbles with gradients of weights";
}

std::string ChangeForTensor(const Settings& settings,
                            const RunPrediction& prediction) {
  if (prediction.mesh.tp % 2 == 0) {
    return absl::StrCat(HalfMesh(prediction.mesh, &MeshSizes::tp),
                        ", whose products are twice as large for each message");
  }
  return absl::StrCat("--micro_batch=", settings.parallel.micro_batch * 2,
                      ", whose messages are fewer");
}

std::string ChangeForStraggler(int64_t rank) {
  return absl::StrCat("check what else runs on the machine of rank ", rank,
                      ", and that ranks have no more --threads than there are "
                      "cores");
}

std::string ChangeForOverlap(const Settings& settings) {
  if (settings.zero == 3) {
    return absl::StrCat(
        "--gather_ahead=", settings.gather_ahead + 1,
        ", which has more computation to overlap with gathers; or "
        "--micro_batch=",
        settings.parallel.micro_batch * 2,
        ", with more computation for the same bytes");
  }
  return absl::StrCat("--micro_batch=", settings.parallel.micro_batch * 2,
                      ", with more computation for the same bytes");
}

std::string ChangeForOffload(const Settings& settings) {
  if (settings.offload_dir.empty()) {
    return settings.compression == "none"
               ? "--offload=none, if memory allows"
               : "--compression=none, which needs no decoding";
  }
  const OffloadChoice offload = OffloadChoice::Of(settings.offload);
  if (offload.activations) {
    return "--recompute=full, which keeps less of each layer, or --offload "
           "without activations, if memory allows; or an --offload_dir on a "
           "faster disk";
  }
  return offload.gradients
             ? "--offload=optimizer, which is read once a step; or an "
               "--offload_dir on a faster disk"
             : "--offload_dir= (host memory), if there is room; or one on a "
               "faster disk";
}

// The mean over ranks.
template <typename Value>
double Mean(const std::vector<RankResult>& ranks, Value value) {
  double sum = 0;
  for (const RankResult& rank : ranks) sum += value(rank.shares);
  return sum / static_cast<double>(ranks.size());
}

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 1; }

// The share of the bytes along tp in all bytes that ranks send.
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
        absl::StrFormat("pipeline ranks are busy for %.1f %% of the time (the "
                        "schedule allows %.1f %%)",
                        100 * efficiency, 100 * (1 - prediction_.bubble)),
        ChangeForPipeline(settings_, prediction_));
  }

  void ReportTensor() {
    const double tensor = TensorShare(prediction_);
    const double efficiency = Mean(result_.ranks, [&](const TimeShares& of) {
      return Ratio(of.products, of.products + tensor * of.communication);
    });
    Add(ReportRule::kTensor, efficiency, limits_.tensor,
        absl::StrFormat("products take %.1f %% of the time of products and "
                        "messages of tensor ranks",
                        100 * efficiency),
        ChangeForTensor(settings_, prediction_));
  }

  // Compares ranks with the same stages.
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

  // Traffic below 1 % of a step is not worth hiding.
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
            "time, %.1f %% of which overlaps computation",
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
                        rank, 100 * share) +
            StallBesideBound(most->traffic),
        ChangeForOffload(settings_), rank);
  }

  // Empty if all blocks are used in place.
  std::string StallBesideBound(const OffloadTraffic& traffic) const {
    const auto steps = static_cast<double>(result_.steps.size());
    if (traffic.bytes_read == 0 || steps == 0) return "";
    return absl::StrFormat(
        "; of %.2f ms a step for reads, any order of reads needs at least "
        "%.2f ms",
        static_cast<double>(traffic.stall_ns) / 1e6 / steps,
        static_cast<double>(traffic.least_stall_ns) / 1e6 / steps);
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

namespace {

// Shares as percentages, ratios as numbers.
std::string Number(ReportRule rule, double value) {
  return rule == ReportRule::kStraggler
             ? absl::StrFormat("%.2f", value)
             : absl::StrFormat("%.1f %%", 100 * value);
}

}  // namespace

void PrintRunReport(const RunReport& report, std::ostream& out) {
  out << absl::StrFormat("report of %d steps, %.4g tokens/s\n", report.steps,
                         report.tokens_per_second);
  for (const Measurement& one : report.measurements) {
    out << absl::StrFormat(
        "%-8s %-13s %8s (%s %s): %s\n", one.broken ? "CHANGE" : "ok",
        ReportRuleName(one.rule), Number(one.rule, one.measured),
        IsUpperLimit(one.rule) ? "limit" : "at least",
        Number(one.rule, one.limit), one.meaning);
    if (one.broken) out << "         try " << one.change << "\n";
  }
  if (report.all_well()) out << "no bottleneck found\n";
}

std::string RunReportAsJson(const RunReport& report) {
  nlohmann::ordered_json json;
  json["steps"] = report.steps;
  json["tokens_per_second"] = report.tokens_per_second;
  json["all_well"] = report.all_well();
  json["measurements"] = nlohmann::ordered_json::array();
  for (const Measurement& one : report.measurements) {
    json["measurements"].push_back({{"rule", ReportRuleName(one.rule)},
                                    {"measured", one.measured},
                                    {"limit", one.limit},
                                    {"broken", one.broken},
                                    {"rank", one.rank},
                                    {"meaning", one.meaning},
                                    {"change", one.change}});
  }
  return json.dump(2) + "\n";
}

}  // namespace tessera::train
