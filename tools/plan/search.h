// Finds the fastest ways to train a model on a cluster that fit into memory.
//
//   TESSERA_ASSIGN_OR_RETURN(const PlanReport report, FindPlans(request));
//   report.plans.front().candidate.mesh;
//
// The result is exact under the Pricer's model: no candidate that fits is
// faster than the first plan. Candidates are examined in order of the lower
// bounds of their times, and the search stops when the remaining ones cannot be
// among the best.
#ifndef TESSERA_TOOLS_PLAN_SEARCH_H_
#define TESSERA_TOOLS_PLAN_SEARCH_H_

#include <cstdint>
#include <ostream>
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
  // The best plan of each mesh, fastest first, then least memory; at most
  // request.top.
  std::vector<Plan> plans;

  int64_t candidates = 0;
  int64_t priced = 0;
  int64_t too_large = 0;  // Of the priced candidates.
  int64_t refused = 0;    // The schedule does not support the pipeline.
  int64_t dry_runs = 0;   // Pricer::dry_runs.
  Refusals meshes;        // Rejected meshes by reason.
  // The candidate that needs the least memory among those that do not fit.
  Candidate smallest;
  int64_t smallest_memory = 0;
};

// ResourceExhausted, with the candidate that needs the least memory, if none
// fits; InvalidArgument if no mesh is possible.
absl::StatusOr<PlanReport> FindPlans(const PlanRequest& request);

// Text: a table of the plans, the command for the first plan, the excluded
// candidates and the assumptions. JSON: an object with the keys model, ranks,
// memory, batch, length, dtype, plans (each with its settings and its command),
// candidates, priced, dry_runs, too_large, refused, meshes_refused and
// assumptions. CSV: one line per plan.
void PrintPlans(const PlanRequest& request, const PlanReport& report,
                tools::OutputFormat format, std::ostream& out);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_SEARCH_H_
