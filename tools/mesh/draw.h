// A picture of a mesh: its ranks on a grid, coloured by group.
#ifndef TESSERA_TOOLS_MESH_DRAW_H_
#define TESSERA_TOOLS_MESH_DRAW_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/mesh/report.h"

namespace tessera::tools {

// A picture has at most this many cells.
inline constexpr int64_t kMaxDrawnRanks = 16384;

// An SVG document. Axes go across and down in turn, fastest first, the third
// and later ones as blocks of blocks; a cell has the colour of its group along
// the first listing, and its tooltip says where it lies. The legend shows up to
// 24 groups. InvalidArgument for a mesh of more than kMaxDrawnRanks.
absl::StatusOr<std::string> DrawSvg(const MeshReport& report);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_DRAW_H_
