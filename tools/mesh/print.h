// A MeshReport as text, JSON or CSV.
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
// Where the report has a grid or a placement, text ends with them and JSON has
// the keys grid (axes, shape, ranks in row-major order) and placement.
//
// CSV: a row for each rank: rank, its coordinates, its group in each listing.
//
// Rows are written as they are made: memory does not grow with the mesh.
void PrintReport(const MeshReport& report, OutputFormat format,
                 std::ostream& out);

// A picture of a mesh: its ranks on a grid, coloured by group.

// A picture has at most this many cells.
inline constexpr int64_t kMaxDrawnRanks = 16384;

// An SVG document. Axes go across and down in turn, fastest first, the third
// and later ones as blocks of blocks; a cell has the colour of its group along
// the first listing, and its tooltip says where it lies. The legend shows up to
// 24 groups. InvalidArgument for a mesh of more than kMaxDrawnRanks.
absl::StatusOr<std::string> DrawSvg(const MeshReport& report);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_PRINT_H_
