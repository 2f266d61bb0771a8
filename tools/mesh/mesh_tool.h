// //tools/mesh as a library: its flags and what it does.
#ifndef TESSERA_TOOLS_MESH_MESH_TOOL_H_
#define TESSERA_TOOLS_MESH_MESH_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// Name, summary and flags of the tool.
const Tool& MeshTool();

// Prints what the flags ask for on `out` and draws --svg. InvalidArgument for
// flags that make no sense; other codes where the picture cannot be written.
absl::Status RunMeshTool(std::ostream& out);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_MESH_TOOL_H_
