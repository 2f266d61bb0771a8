// A MeshReport as text, JSON or CSV.
#ifndef TESSERA_TOOLS_MESH_PRINT_H_
#define TESSERA_TOOLS_MESH_PRINT_H_

#include <ostream>

#include "tools/cli/output_format.h"
#include "tools/mesh/report.h"

namespace tessera::tools {

// Text: a table of ranks, then every listing with its groups' names; for one
// rank also its neighbours.
//
// JSON: axes (name -> size, fastest first), order, world_size, along (the first
// listing's axes), groups (its rank lists), group_names, ranks (for each rank
// its coordinates, name -> number). For one rank: rank and description too, and
// groups and ranks hold just its own.
//
// Where the report has a grid or a placement, text ends with them and JSON has
// the keys grid (axes, shape, ranks in row-major order) and placement.
//
// CSV: a row for each rank: rank, its coordinates, its group in each listing.
//
// Rows are written as they are made: memory does not grow with the mesh.
void PrintReport(const MeshReport& report, OutputFormat format,
                 std::ostream& out);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_PRINT_H_
