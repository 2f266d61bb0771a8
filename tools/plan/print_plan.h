// PrintPlans: a PlanReport for people and for programs.
#ifndef TESSERA_TOOLS_PLAN_PRINT_PLAN_H_
#define TESSERA_TOOLS_PLAN_PRINT_PLAN_H_

#include <ostream>

#include "tools/cli/output_format.h"
#include "tools/plan/search.h"

namespace tessera::plan {

// Text: the plans as a table, the command that starts the first, what was left
// out and what was assumed. JSON: an object with the keys model, ranks, memory,
// batch, length, dtype, plans (each with its command), candidates, priced,
// too_large, refused, meshes_refused and assumptions. CSV: a line for each
// plan.
void PrintPlans(const PlanRequest& request, const PlanReport& report,
                tools::OutputFormat format, std::ostream& out);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_PRINT_PLAN_H_
