// FindPlans: the fastest ways to train a model on a cluster, of those that fit.
//
//   TESSERA_ASSIGN_OR_RETURN(const PlanReport report, FindPlans(request));
//   report.plans.front().candidate.mesh;
//
// Exact under the Pricer's model: of all candidates that fit, none is faster
// than the first plan. Candidates are gone through in the order of the least
// time that they could take, and those that cannot be among the best are left
// out unseen.
#ifndef TESSERA_TOOLS_PLAN_SEARCH_H_
#define TESSERA_TOOLS_PLAN_SEARCH_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
#include "tools/plan/candidate.h"
#include "tools/plan/pricer.h"

namespace tessera::plan {

struct Plan {
  Candidate candidate;
  StepSeconds step;
  int64_t memory = 0;  // Of the rank that needs most.
};

struct PlanReport {
  // The best of each mesh, the fastest first: at most request.top. Of equally
  // fast ones the one that needs less memory comes first.
  std::vector<Plan> plans;

  int64_t candidates = 0;
  int64_t priced = 0;
  int64_t too_large = 0;  // Of those that were looked at.
  int64_t refused = 0;    // Whose schedule cannot be of such a pipeline.
  Refusals meshes;        // That are none, by reason.
  // Of those that do not fit, the one that needs least.
  Candidate smallest;
  int64_t smallest_memory = 0;
};

// ResourceExhausted where nothing fits: says what would need least;
// InvalidArgument where no mesh is possible.
absl::StatusOr<PlanReport> FindPlans(const PlanRequest& request);

// PrintPlans: a PlanReport for people and for programs.

// Text: the plans as a table, the command that starts the first, what was left
// out and what was assumed. JSON: an object with the keys model, ranks, memory,
// batch, length, dtype, plans (each with its command), candidates, priced,
// too_large, refused, meshes_refused and assumptions. CSV: a line for each
// plan.
void PrintPlans(const PlanRequest& request, const PlanReport& report,
                tools::OutputFormat format, std::ostream& out);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_SEARCH_H_
