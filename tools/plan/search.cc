#include "tools/plan/search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

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
    for (auto& [mesh, plan] : best_) report_.plans.push_back(plan);
    std::sort(report_.plans.begin(), report_.plans.end(), IsBefore);
    const auto top = static_cast<size_t>(request_.top);
    if (report_.plans.size() > top) report_.plans.resize(top);
    return std::move(report_);
  }

 private:
  // In the order of what they could take at least.
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

  // The slowest plan that is among the best so far; infinite while there are
  // too few.
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

  // What costs least to know comes first: ranks are run for those alone that
  // may fit, and may be the best of their mesh.
  absl::Status Consider(const Candidate& candidate) {
    ++report_.priced;
    const double best = BestOf(candidate);
    const auto quick = pricer_.LeastTime(candidate);
    if (!quick.ok()) {
      ++report_.refused;
      return absl::OkStatus();
    }
    if (quick->total() > std::min(best, Worst())) return absl::OkStatus();
    // No faster than with one reduction a step, which comes before.
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
      "nothing fits into ", request.memory, " bytes a rank; what needs least, ",
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

}  // namespace tessera::plan
