// //tools/schedule as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_SCHEDULE_SCHEDULE_TOOL_H_
#define TESSERA_TOOLS_SCHEDULE_SCHEDULE_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// Name, summary and flags of the tool.
const Tool& ScheduleTool();

// Prints what the flags ask for on `out` and draws --svg and --trace.
// InvalidArgument for flags that make no sense; FailedPrecondition, after it
// has printed, where the schedule of --input is not valid; other codes where a
// file cannot be read or written.
absl::Status RunScheduleTool(std::ostream& out);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_SCHEDULE_SCHEDULE_TOOL_H_
