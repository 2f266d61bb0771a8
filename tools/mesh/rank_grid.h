// RankGrid: ranks of a mesh laid out as a line, a plane or a box.
//
//   const std::vector<std::string_view> sets = {"dp", "tp"};
//   TESSERA_ASSIGN_OR_RETURN(RankGrid grid,
//                            RankGrid::Create(mesh, sets, Rank(0)));
//   std::cout << grid.ToString();   // rows along dp, columns along tp
#ifndef TESSERA_TOOLS_MESH_RANK_GRID_H_
#define TESSERA_TOOLS_MESH_RANK_GRID_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::tools {

class RankGrid {
 public:
  static constexpr size_t kMaxAxes = 3;
  static constexpr int64_t kMaxCells = int64_t{1} << 24;

  struct GridAxis {
    std::string name;  // The set of axes, such as "dp,cp".
    int64_t size = 1;
  };

  // The ranks of `mesh` along 1 to 3 sets of axes, such as {"dp", "tp"} for
  // rows along dp and columns along tp, or {"pp", "dp,cp", "tp"}: those that
  // agree with `member` in all other coordinates. InvalidArgument as
  // Mesh::GroupsAlong, and if two sets share an axis, no division of the mesh
  // has them all, or there are more than kMaxCells ranks.
  static absl::StatusOr<RankGrid> Create(
      const topology::Mesh& mesh, std::span<const std::string_view> axis_sets,
      topology::Rank member);

  // The slowest-varying first.
  std::span<const GridAxis> axes() const { return axes_; }
  // In row-major order: the last axis varies fastest.
  std::span<const topology::Rank> ranks() const { return ranks_; }

  // A picture: a line for each row, planes headed by their number. Along each
  // axis the first `most` are shown, then "...".
  //
  //   0 1 2
  //   3 4 5
  std::string ToString(int64_t most = 32) const;

 private:
  RankGrid() = default;

  void AppendPlane(int64_t plane, int64_t most, std::string* picture) const;

  std::vector<GridAxis> axes_;
  // Planes, rows, columns; 1 if there is no such axis.
  std::array<int64_t, kMaxAxes> shape_ = {1, 1, 1};
  std::vector<topology::Rank> ranks_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_MESH_RANK_GRID_H_
