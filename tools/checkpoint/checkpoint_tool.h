// //tools/checkpoint as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_CHECKPOINT_CHECKPOINT_TOOL_H_
#define TESSERA_TOOLS_CHECKPOINT_CHECKPOINT_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// Name, summary and flags of the tool.
const Tool& CheckpointTool();

// Does what the flags say, prints results on `out` and how far it is on
// `progress`. InvalidArgument for flags that make no sense; other codes for
// what is found to be wrong with files.
absl::Status RunCheckpointTool(std::ostream& out, std::ostream& progress);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_CHECKPOINT_TOOL_H_
