// PrintReport: a MeshReport as text, JSON or CSV; DrawSvg: the same as a
// picture.
#ifndef TESSERA_TOOLS_MESH_PRINT_H_
#define TESSERA_TOOLS_MESH_PRINT_H_

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "tools/cli/cli.h"
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
// If the report has a grid or a placement, text ends with them and JSON has the
// keys grid (axes, shape, ranks in row-major order) and placement.
//
// CSV: a row for each rank: rank, its coordinates, its group in each listing.
//
// Rows are written one by one: memory does not grow with the mesh.
void PrintReport(const MeshReport& report, OutputFormat format,
                 std::ostream& out);

// The largest mesh of a picture.
inline constexpr int64_t kMaxDrawnRanks = 16384;

// An SVG document with the ranks on a grid, coloured by group. Axes go across
// and down in turn, fastest first, the third and later ones as blocks of
// blocks; a cell has the colour of its group in the first listing and a tooltip
// with its coordinates. The legend shows up to 24 groups. InvalidArgument for
// more than kMaxDrawnRanks ranks.
absl::StatusOr<std::string> DrawSvg(const MeshReport& report);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_PRINT_H_
