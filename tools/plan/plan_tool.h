// //tools/plan as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_PLAN_PLAN_TOOL_H_
#define TESSERA_TOOLS_PLAN_PLAN_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::plan {

// Name, summary and flags of the tool.
const tools::Tool& PlanTool();

// Prints the plans for what the flags say on `out`. InvalidArgument for flags
// that make no sense; ResourceExhausted where nothing fits.
absl::Status RunPlanTool(std::ostream& out);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_PLAN_TOOL_H_
