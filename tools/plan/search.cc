#include "tools/plan/search.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/cli/records.h"
#include "topology/cluster/cluster.h"

namespace tessera::plan {

namespace {

struct Bounded {
  double least = 0;
  Candidate candidate;
};

bool IsBefore(const Plan& a, const Plan& b) {
  return std::tuple(a.step.total(), a.memory) <
         std::tuple(b.step.total(), b.memory);
}

class Search {
 public:
  explicit Search(const PlanRequest& request)
      : request_(request), pricer_(request) {}

  absl::StatusOr<PlanReport> Run() {
    const std::vector<Bounded> candidates = Bound();
    for (const Bounded& one : candidates) {
      if (one.least > Worst()) break;
      if (one.least > BestOf(one.candidate)) continue;
      TESSERA_RETURN_IF_ERROR(Consider(one.candidate));
    }
    report_.dry_runs = pricer_.dry_runs();
    for (auto& [mesh, plan] : best_) report_.plans.push_back(plan);
    std::sort(report_.plans.begin(), report_.plans.end(), IsBefore);
    const auto top = static_cast<size_t>(request_.top);
    if (report_.plans.size() > top) report_.plans.resize(top);
    return std::move(report_);
  }

 private:
  // All candidates in order of their lower bounds.
  std::vector<Bounded> Bound() {
    std::vector<Bounded> bounded;
    for (Candidate& candidate : EnumerateCandidates(request_, report_.meshes)) {
      ++report_.candidates;
      const auto least = pricer_.LeastSeconds(candidate);
      if (least.ok()) {
        bounded.push_back({*least, std::move(candidate)});
      } else {
        ++report_.refused;
      }
    }
    std::stable_sort(
        bounded.begin(), bounded.end(),
        [](const auto& a, const auto& b) { return a.least < b.least; });
    return bounded;
  }

  // The time of the slowest of the best request.top plans so far; kNever while
  // there are fewer.
  double Worst() const {
    std::vector<double> seconds;
    for (const auto& [mesh, plan] : best_) {
      seconds.push_back(plan.step.total());
    }
    const auto top = static_cast<size_t>(request_.top);
    if (seconds.size() < top) return kNever;
    std::nth_element(seconds.begin(),
                     seconds.begin() + static_cast<ptrdiff_t>(top - 1),
                     seconds.end());
    return seconds[top - 1];
  }

  double BestOf(const Candidate& candidate) const {
    const auto found = best_.find(MeshNameOf(candidate));
    return found == best_.end() ? kNever : found->second.step.total();
  }

  // Prices a candidate, checking the cheapest bounds first: only candidates
  // that may fit and may be the best of their mesh get a dry run.
  absl::Status Consider(const Candidate& candidate) {
    ++report_.priced;
    const double best = BestOf(candidate);
    const auto quick = pricer_.LeastTime(candidate);
    if (!quick.ok()) {
      ++report_.refused;
      return absl::OkStatus();
    }
    if (quick->total() > std::min(best, Worst())) return absl::OkStatus();
    // It is not faster than with one reduction per step, which is examined
    // before.
    if (candidate.reduce == train::ReduceChoice::kEachMicroBatch &&
        FitsWithOneReduction(candidate)) {
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t least,
                             pricer_.LeastMemory(candidate));
    if (least > request_.memory) return TooLarge(candidate, least);
    TESSERA_ASSIGN_OR_RETURN(const int64_t memory, pricer_.Memory(candidate));
    if (memory > request_.memory) return TooLarge(candidate, memory);
    TESSERA_ASSIGN_OR_RETURN(const StepSeconds step, pricer_.Time(candidate));
    Plan plan = {candidate, step, memory};
    const auto found = best_.find(MeshNameOf(candidate));
    if (found != best_.end() && !IsBefore(plan, found->second)) {
      return absl::OkStatus();
    }
    best_[MeshNameOf(candidate)] = std::move(plan);
    return absl::OkStatus();
  }

  bool FitsWithOneReduction(Candidate candidate) {
    candidate.reduce = train::ReduceChoice::kLastMicroBatch;
    const auto least = pricer_.LeastMemory(candidate);
    if (!least.ok() || *least > request_.memory) return false;
    const auto memory = pricer_.Memory(candidate);
    return memory.ok() && *memory <= request_.memory;
  }

  absl::Status TooLarge(const Candidate& candidate, int64_t memory) {
    ++report_.too_large;
    if (report_.smallest_memory == 0 || memory < report_.smallest_memory) {
      report_.smallest_memory = memory;
      report_.smallest = candidate;
    }
    return absl::OkStatus();
  }

  static constexpr double kNever = 1e300;

  const PlanRequest& request_;
  Pricer pricer_;
  PlanReport report_;
  std::map<std::string, Plan> best_;  // By mesh.
};

absl::Status NoMesh(const PlanRequest& request, const PlanReport& report) {
  return absl::InvalidArgumentError(
      absl::StrCat("no mesh of ", request.ranks, " ranks suits the model: ",
                   absl::StrJoin(report.meshes, "; ",
                                 [](std::string* text, const auto& reason) {
                                   absl::StrAppend(text, reason.first, " (",
                                                   reason.second, " meshes)");
                                 })));
}

absl::Status NothingFits(const PlanRequest& request, const PlanReport& report) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no plan fits into ", request.memory, " bytes per rank; the smallest, ",
      report.smallest_memory,
      " bytes or more, is: ", CommandOf(request, report.smallest),
      "; give more ranks or memory, a smaller batch or shorter sequences"));
}

}  // namespace

absl::StatusOr<PlanReport> FindPlans(const PlanRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(PlanReport report, Search(request).Run());
  if (!report.plans.empty()) return report;
  return report.too_large > 0 ? NothingFits(request, report)
                              : NoMesh(request, report);
}

namespace {

using Json = nlohmann::ordered_json;

std::string Gibibytes(int64_t bytes) {
  return absl::StrFormat("%.3g", static_cast<double>(bytes) /
                                     static_cast<double>(int64_t{1} << 30));
}

double TokensPerSecond(const PlanRequest& request, const Plan& plan) {
  return static_cast<double>(request.batch) *
         static_cast<double>(request.length) / plan.step.total();
}

// Model flops utilisation: the share of the devices' peak (arXiv 2204.02311,
// appendix B).
double Utilisation(const PlanRequest& request, const Plan& plan) {
  return request.model.TrainingFlopsPerToken(request.length) *
         TokensPerSecond(request, plan) /
         (request.flops * static_cast<double>(request.ranks));
}

std::vector<std::string> Assumptions(const PlanRequest& request) {
  std::vector<std::string> assumptions = {
      topology::Describe(request.cluster),
      RatesOf(request).Describe(),
      "a message takes the latency of the link between neighbours plus its "
      "bytes over the bandwidth (topology/placement); ranks are ordered "
      "tensor, context, data, pipeline",
      "messages of tensor ranks are not overlapped; those of context ranks "
      "overlap with attention, those between stages with other micro-batches; "
      "those of data ranks overlap with the computation of their micro-batch, "
      "except the first",
      "the optimizer is bound by the device's memory",
      "memory is that of //tools/train without the base of a process",
      "state is not offloaded; tensor ranks have sequence parallelism"};
  if (request.model.mixture.experts > 0) {
    assumptions.push_back(
        "experts take equally many tokens; their all-to-alls are not "
        "overlapped");
  }
  return assumptions;
}

std::string ScheduleName(const Candidate& candidate) {
  if (candidate.mesh.pp == 1) return "-";
  return candidate.chunks == 1
             ? candidate.schedule
             : absl::StrCat(candidate.schedule, " x", candidate.chunks);
}

void PrintTable(const PlanRequest& request, const PlanReport& report,
                std::ostream& out) {
  out << absl::StrFormat(
      "%2s  %-22s %-19s %4s %-6s %-9s %5s %4s %9s %6s %6s %6s %9s %5s %7s\n",
      "", "mesh", "schedule", "zero", "reduce", "recompute", "batch", "m",
      "step s", "pipe", "data", "bubble", "tokens/s", "mfu", "GiB");
  int64_t number = 0;
  for (const Plan& plan : report.plans) {
    const Candidate& c = plan.candidate;
    const StepSeconds& step = plan.step;
    out << absl::StrFormat(
        "%2d  %-22s %-19s %4d %-6s %-9s %5d %4d %9.4g %5.1f%% %5.1f%% "
        "%5.1f%% %9.4g %4.1f%% %7s\n",
        ++number, MeshNameOf(c), ScheduleName(c), c.zero,
        ReduceNameOf(c).empty() ? "-" : ReduceNameOf(c),
        RecomputeName(c.recompute), c.micro_batch,
        c.micro_batches(request.batch), step.total(),
        100 * step.pipeline / step.total(), 100 * step.data / step.total(),
        100 * step.bubble, TokensPerSecond(request, plan),
        100 * Utilisation(request, plan), Gibibytes(plan.memory));
  }
}

void PrintLeftOut(const PlanReport& report, std::ostream& out) {
  out << report.candidates << " candidates; " << report.priced
      << " examined that could be among the best; " << report.too_large
      << " of these do not fit";
  if (report.too_large > 0) {
    out << " (such as " << MeshNameOf(report.smallest) << " zero "
        << report.smallest.zero << ", which needs "
        << Gibibytes(report.smallest_memory) << " GiB or more)";
  }
  out << "\n";
  if (report.refused > 0) {
    out << report.refused << " have a schedule that does not support their "
        << "micro-batches\n";
  }
  for (const auto& [reason, count] : report.meshes) {
    out << count << " meshes left out: " << reason << "\n";
  }
}

void PrintText(const PlanRequest& request, const PlanReport& report,
               std::ostream& out) {
  out << absl::StrFormat(
      "%s (%.4g parameters) on %d ranks of %s GiB, %d sequences of %d tokens, "
      "%s\n\n",
      request.model_name, static_cast<double>(request.model.ParameterCount()),
      request.ranks, Gibibytes(request.memory), request.batch, request.length,
      DTypeName(request.dtype));
  PrintTable(request, report, out);
  out << "\n" << CommandOf(request, report.plans.front().candidate) << "\n\n";
  PrintLeftOut(report, out);
  out << "\nassumed:\n";
  for (const std::string& line : Assumptions(request)) {
    out << "  - " << line << "\n";
  }
}

Json PlanAsJson(const PlanRequest& request, const Plan& plan) {
  const Candidate& c = plan.candidate;
  return {{"mesh", MeshNameOf(c)},
          {"dp", c.mesh.dp},
          {"pp", c.mesh.pp},
          {"cp", c.mesh.cp},
          {"tp", c.mesh.tp},
          {"ep", c.mesh.ep},
          {"schedule", c.schedule},
          {"chunks", c.chunks},
          {"zero", c.zero},
          {"reduce", ReduceNameOf(c)},
          {"recompute", RecomputeName(c.recompute)},
          {"micro_batch", c.micro_batch},
          {"micro_batches", c.micro_batches(request.batch)},
          {"sequence_parallel", c.sequence_parallel()},
          {"step_seconds", plan.step.total()},
          {"pipeline_seconds", plan.step.pipeline},
          {"data_seconds", plan.step.data},
          {"optimizer_seconds", plan.step.optimizer},
          {"bubble", plan.step.bubble},
          {"tokens_per_second", TokensPerSecond(request, plan)},
          {"mfu", Utilisation(request, plan)},
          {"memory_bytes", plan.memory},
          {"settings", SettingsOf(request, c)},
          {"command", CommandOf(request, c)}};
}

void PrintJson(const PlanRequest& request, const PlanReport& report,
               std::ostream& out) {
  Json json;
  json["model"] = request.model_name;
  json["parameters"] = request.model.ParameterCount();
  json["ranks"] = request.ranks;
  json["memory"] = request.memory;
  json["batch"] = request.batch;
  json["length"] = request.length;
  json["dtype"] = DTypeName(request.dtype);
  json["plans"] = Json::array();
  for (const Plan& plan : report.plans) {
    json["plans"].push_back(PlanAsJson(request, plan));
  }
  json["candidates"] = report.candidates;
  json["priced"] = report.priced;
  json["dry_runs"] = report.dry_runs;
  json["too_large"] = report.too_large;
  json["refused"] = report.refused;
  json["meshes_refused"] = report.meshes;
  json["assumptions"] = Assumptions(request);
  out << DumpJson(json, 2) << "\n";
}

void PrintCsv(const PlanRequest& request, const PlanReport& report,
              std::ostream& out) {
  tools::RecordPrinter printer(tools::OutputFormat::kCsv, "", out);
  for (const Plan& plan : report.plans) {
    Json record = PlanAsJson(request, plan);
    record.erase("settings");  // The command contains them.
    printer.Print(record, "");
  }
}

}  // namespace

void PrintPlans(const PlanRequest& request, const PlanReport& report,
                tools::OutputFormat format, std::ostream& out) {
  switch (format) {
    case tools::OutputFormat::kText:
      return PrintText(request, report, out);
    case tools::OutputFormat::kJson:
      return PrintJson(request, report, out);
    case tools::OutputFormat::kCsv:
      return PrintCsv(request, report, out);
  }
}

}  // namespace tessera::plan
