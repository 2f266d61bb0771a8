#include "tools/train/report/run_report.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json/json.h"
#include "nlohmann/json.hpp"
#include "tools/train/report/straggler.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {

namespace {

struct Rule {
  std::string_view name;
  double limit;
  bool is_upper;  // Broken above the limit.
};

const Rule& RuleOf(ReportRule rule) {
  static constexpr Rule kRules[] = {{"communication", 0.30, true},
                                    {"memory", 0.90, true},
                                    {"pipeline", 0.70, false},
                                    {"tensor", 0.80, false},
                                    {"straggler", kStragglerRatio, true},
                                    {"overlap", 0.80, false},
                                    {"offload", 0.10, true}};
  return kRules[static_cast<size_t>(rule)];
}

// Of all ranks, by prediction.
int64_t SentAlong(TrafficAxis axis, const RunPrediction& prediction) {
  int64_t sent = 0;
  for (const RankPrediction& rank : prediction.ranks) {
    sent += rank.traffic.SentAlong(axis);
  }
  return sent;
}

// The mesh with half as many ranks along one axis and twice the data ranks.
std::string HalfMesh(MeshSizes mesh, int64_t MeshSizes::*axis) {
  mesh.*axis /= 2;
  mesh.dp *= 2;
  return absl::StrCat("--mesh=", mesh.ToString());
}

// Each of these returns a sentence with flags and values for these settings.
std::string ChangeForCommunication(const Settings& settings,
                                   const RunPrediction& prediction) {
  const MeshSizes& mesh = prediction.mesh;
  const TrafficAxis busiest = *std::max_element(
      kTrafficAxes.begin(), kTrafficAxes.end(),
      [&](TrafficAxis a, TrafficAxis b) {
        return SentAlong(a, prediction) < SentAlong(b, prediction);
      });
  const std::string where =
      absl::StrCat("most bytes go along ", TrafficAxisName(busiest), ": ");
  constexpr std::pair<TrafficAxis, int64_t MeshSizes::*> kHalved[] = {
      {TrafficAxis::kTp, &MeshSizes::tp},
      {TrafficAxis::kCp, &MeshSizes::cp},
      {TrafficAxis::kPp, &MeshSizes::pp}};
  for (const auto& [axis, size] : kHalved) {
    if (busiest == axis && mesh.*size % 2 == 0) {
      return where + HalfMesh(mesh, size);
    }
  }
  return absl::StrCat(where,
                      settings.zero == 3
                          ? "--zero=1, which gathers weights only after the "
                            "optimizer, if memory allows; or "
                          : "",
                      "--batch=", settings.batch * 2,
                      ", which sums gradients once for twice as many tokens");
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

std::string ChangeForOverlap(const Settings& settings) {
  return absl::StrCat(
      settings.zero == 3
          ? absl::StrCat("--gather_ahead=", settings.gather_ahead + 1,
                         ", which has more computation to overlap with "
                         "gathers; or ")
          : "",
      "--micro_batch=", settings.parallel.micro_batch * 2,
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

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 1; }

// The share of the bytes along tp in all bytes that ranks send.
double TensorShare(const RunPrediction& prediction) {
  int64_t all = 0;
  for (const RankPrediction& rank : prediction.ranks) {
    all += rank.traffic.Sent();
  }
  return all > 0
             ? static_cast<double>(SentAlong(TrafficAxis::kTp, prediction)) /
                   static_cast<double>(all)
             : 0;
}

class Reporter {
 public:
  Reporter(const RunResult& result, const Settings& settings,
           const RunPrediction& prediction)
      : result_(result), settings_(settings), prediction_(prediction) {}

  RunReport Run() {
    report_.steps = static_cast<int64_t>(result_.steps.size());
    report_.tokens_per_second = result_.tokens_per_second;
    if (result_.ranks.empty()) return std::move(report_);
    CompareBusiestRank();
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
  void CompareBusiestRank() {
    const RankPrediction& busiest = prediction_.busiest();
    report_.busiest_rank = busiest.place.RankIn(prediction_.mesh);
    report_.predicted = busiest.traffic;
    // With --min_dp a run may have ended with fewer ranks.
    if (report_.busiest_rank >= std::ssize(result_.ranks)) return;
    report_.measured =
        result_.ranks[static_cast<size_t>(report_.busiest_rank)].messages;
  }

  // Adds a measurement with the rule's limit, or another.
  void Add(Measurement one, std::optional<double> limit = std::nullopt) {
    const Rule& rule = RuleOf(one.rule);
    one.limit = limit.value_or(rule.limit);
    one.broken =
        rule.is_upper ? one.measured > one.limit : one.measured < one.limit;
    if (!one.broken) one.change.clear();
    report_.measurements.push_back(std::move(one));
  }

  // The mean over ranks.
  template <typename Value>
  double Mean(Value value) const {
    double sum = 0;
    for (const RankResult& rank : result_.ranks) {
      sum += std::invoke(value, rank.shares);
    }
    return sum / static_cast<double>(result_.ranks.size());
  }

  void ReportCommunication() {
    const double share = Mean(&TimeShares::communication);
    Add({.rule = ReportRule::kCommunication,
         .measured = share,
         .meaning = absl::StrFormat(
             "ranks spend %.1f %% of their time in messages", 100 * share),
         .change = ChangeForCommunication(settings_, prediction_)});
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
    Add({.rule = ReportRule::kMemory,
         .measured = share,
         .meaning = absl::StrFormat(
             "the run took %.1f %% of the memory that the %s had left",
             100 * share, prediction_.room.limit),
         .change = ChangeForMemory(settings_, prediction_)});
  }

  void ReportPipeline() {
    const double efficiency = Mean([](const TimeShares& of) {
      const double busy = of.compute + of.communication;
      return Ratio(busy, busy + of.bubble);
    });
    Add({.rule = ReportRule::kPipeline,
         .measured = efficiency,
         .meaning = absl::StrFormat(
             "pipeline ranks are busy for %.1f %% of the time (the schedule "
             "allows %.1f %%)",
             100 * efficiency, 100 * (1 - prediction_.bubble)),
         .change = ChangeForPipeline(settings_, prediction_)});
  }

  void ReportTensor() {
    const double tensor = TensorShare(prediction_);
    const double efficiency = Mean([&](const TimeShares& of) {
      return Ratio(of.products, of.products + tensor * of.communication);
    });
    Add({.rule = ReportRule::kTensor,
         .measured = efficiency,
         .meaning = absl::StrFormat("products take %.1f %% of the time of "
                                    "products and messages of tensor ranks",
                                    100 * efficiency),
         .change = ChangeForTensor(settings_, prediction_)});
  }

  // Adds the stragglers, or the slowest rank if there are none. Compares ranks
  // with the same stages.
  void ReportStragglers() {
    using RatioOfRank = std::pair<double, int64_t>;
    std::vector<double> compute;
    std::vector<int64_t> stages;
    for (const RankResult& rank : result_.ranks) {
      stages.push_back(
          RankPlace::Of(static_cast<int64_t>(stages.size()), prediction_.mesh)
              .pp);
      compute.push_back(rank.shares.compute);
    }
    std::vector<RatioOfRank> all;
    for (const double ratio : RatiosToMedian(compute, stages)) {
      all.push_back({ratio, static_cast<int64_t>(all.size())});
    }
    const RatioOfRank slowest = *std::max_element(all.begin(), all.end());
    const double limit = RuleOf(ReportRule::kStraggler).limit;
    for (const RatioOfRank& one : all) {
      const bool is_slowest = one == slowest && all.size() > 1;
      if (one.first > limit || (is_slowest && slowest.first <= limit)) {
        AddStraggler(one);
      }
    }
  }

  void AddStraggler(const std::pair<double, int64_t>& ratio_of_rank) {
    const auto& [ratio, rank] = ratio_of_rank;
    Add({.rule = ReportRule::kStraggler,
         .measured = ratio,
         .rank = rank,
         .meaning = absl::StrFormat("rank %d computes %.2f times as long as "
                                    "the median of the ranks with its stages",
                                    rank, ratio),
         .change = absl::StrCat(
             "check what else runs on the machine of rank ", rank,
             ", and that ranks have no more --threads than there are cores")});
  }

  void ReportOverlap() {
    const double traffic = Mean(&TimeShares::state_traffic);
    if (traffic == 0) return;
    const double share = Ratio(Mean(&TimeShares::state_hidden), traffic);
    // Traffic below 1 % of a step is not worth hiding.
    Add({.rule = ReportRule::kOverlap,
         .measured = share,
         .meaning = absl::StrFormat(
             "weights are gathered and gradients reduced for %.1f %% of the "
             "time, %.1f %% of which overlaps computation",
             100 * traffic, 100 * share),
         .change = ChangeForOverlap(settings_)},
        traffic < 0.01 ? std::optional(0.0) : std::nullopt);
  }

  void ReportOffload() {
    const auto most =
        std::max_element(result_.ranks.begin(), result_.ranks.end(),
                         [](const RankResult& a, const RankResult& b) {
                           return a.shares.offload < b.shares.offload;
                         });
    const double share = most->shares.offload;
    const auto rank = static_cast<int64_t>(most - result_.ranks.begin());
    Add({.rule = ReportRule::kOffload,
         .measured = share,
         .rank = rank,
         .meaning = absl::StrFormat(
                        "rank %d waits %.1f %% of its time for offloaded state",
                        rank, 100 * share) +
                    StallBesideBound(most->traffic),
         .change = ChangeForOffload(settings_)});
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
  RunReport report_;
};

// Shares as percentages, ratios as numbers.
std::string Number(ReportRule rule, double value) {
  return rule == ReportRule::kStraggler
             ? absl::StrFormat("%.2f", value)
             : absl::StrFormat("%.1f %%", 100 * value);
}

nlohmann::ordered_json MessagesAsJson(const RunReport& report) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [messages, measured] :
       CompareMessages(report.predicted, report.measured)) {
    list.push_back({{"axis", messages.axis},
                    {"ranks", messages.ranks},
                    {"operation", messages.operation},
                    {"predicted_count", messages.totals.count},
                    {"predicted_bytes", messages.totals.bytes},
                    {"count", measured.count},
                    {"bytes", measured.bytes},
                    {"mean_ns", nullptr},
                    {"busbw_GBps", nullptr}});
    if (!report.measured.is_timed) continue;
    list.back()["mean_ns"] = measured.MeanNanos();
    list.back()["busbw_GBps"] = measured.BusBandwidth();
  }
  return {{"rank", report.busiest_rank},
          {"steps", report.measured.steps},
          {"axes", list}};
}

}  // namespace

bool RunReport::all_well() const {
  return std::none_of(measurements.begin(), measurements.end(),
                      [](const Measurement& one) { return one.broken; });
}

RunReport MakeRunReport(const RunResult& result, const Settings& settings,
                        const RunPrediction& prediction) {
  return Reporter(result, settings, prediction).Run();
}

void PrintRunReport(const RunReport& report, std::ostream& out) {
  out << absl::StrFormat("report of %d steps, %.4g tokens/s\n", report.steps,
                         report.tokens_per_second);
  for (const Measurement& one : report.measurements) {
    const Rule& rule = RuleOf(one.rule);
    out << absl::StrFormat(
        "%-8s %-13s %8s (%s %s): %s\n", one.broken ? "CHANGE" : "ok", rule.name,
        Number(one.rule, one.measured), rule.is_upper ? "limit" : "at least",
        Number(one.rule, one.limit), one.meaning);
    if (one.broken) out << "         try " << one.change << "\n";
  }
  if (report.all_well()) out << "no bottleneck found\n";
  if (report.measured.messages.empty()) return;
  out << "\nmessages of rank " << report.busiest_rank
      << " in a step: predicted, and the mean of " << report.measured.steps
      << " measured steps\n";
  PrintCells(MessageTable(report.predicted, &report.measured), out);
}

std::string RunReportAsJson(const RunReport& report) {
  nlohmann::ordered_json json;
  json["steps"] = report.steps;
  json["tokens_per_second"] = report.tokens_per_second;
  json["all_well"] = report.all_well();
  json["measurements"] = nlohmann::ordered_json::array();
  for (const Measurement& one : report.measurements) {
    json["measurements"].push_back({{"rule", RuleOf(one.rule).name},
                                    {"measured", one.measured},
                                    {"limit", one.limit},
                                    {"broken", one.broken},
                                    {"rank", one.rank},
                                    {"meaning", one.meaning},
                                    {"change", one.change}});
  }
  json["messages"] = MessagesAsJson(report);
  return DumpJson(json, 2) + "\n";
}

}  // namespace tessera::train
