// Prints a MeshReport as text, JSON or CSV, or draws it as an SVG picture.
#ifndef TESSERA_TOOLS_MESH_PRINT_H_
#define TESSERA_TOOLS_MESH_PRINT_H_

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
#include "tools/mesh/report.h"

namespace tessera::tools {

// Text: a table of ranks, then every listing with the names of its groups; for
// a single rank also its neighbours.
//
// JSON: axes (name -> size, fastest first), order, world_size, along (the axes
// of the first listing), groups (its rank lists), group_names, ranks (the
// coordinates of each rank, name -> number). For a single rank: also rank and
// description, and groups and ranks contain only those of that rank.
//
// If the report has a grid, a placement or a tensor, the text ends with it, and
// JSON has the keys grid (axes, shape, ranks in row-major order), placement and
// tensor.
//
// CSV: a row per rank with the rank, its coordinates, and its group in each
// listing.
//
// Writes row by row, so that memory does not grow with the mesh.
void PrintReport(const MeshReport& report, OutputFormat format,
                 std::ostream& out);

// The largest mesh that DrawSvg draws.
inline constexpr int64_t kMaxDrawnRanks = 16384;

// Returns an SVG document with the ranks on a grid, coloured by group. Axes
// alternate between horizontal and vertical, fastest first; the third and later
// axes form nested grids. A cell has the colour of its group in the first
// listing and a tooltip with its coordinates. The legend shows up to 24 groups.
// InvalidArgument for more than kMaxDrawnRanks ranks.
absl::StatusOr<std::string> DrawSvg(const MeshReport& report);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_PRINT_H_
