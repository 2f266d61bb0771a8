#include "tools/mesh/rank_grid.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "topology/groups.h"

namespace tessera::tools {

namespace {

using topology::Groups;
using topology::Mesh;
using topology::Rank;

constexpr std::string_view kWhat = "grid of ranks";

// The groups along each set, all of one division and no axis in two sets.
absl::StatusOr<std::vector<Groups>> GroupsOf(
    const Mesh& mesh, std::span<const std::string_view> axis_sets) {
  std::vector<Groups> groups;
  std::vector<std::string> all;
  for (const std::string_view axis_set : axis_sets) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names,
                             topology::ParseAxisNames(axis_set));
    for (std::string& name : names) all.push_back(std::move(name));
    TESSERA_ASSIGN_OR_RETURN(Groups along, mesh.GroupsAlong(axis_set));
    groups.push_back(std::move(along));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (all[i] != all[j]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("axis \"", all[i],
                       "\" is in two sets; name each axis in one of them"));
    }
  }
  TESSERA_RETURN_IF_ERROR(mesh.DivisionWith(all).status());
  return groups;
}

}  // namespace

absl::StatusOr<RankGrid> RankGrid::Create(
    const Mesh& mesh, std::span<const std::string_view> axis_sets,
    Rank member) {
  if (axis_sets.empty() || axis_sets.size() > kMaxAxes) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWhat, ": ", axis_sets.size(),
                     " sets of axes are given; choose 1, 2 or 3"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Groups> groups,
                           GroupsOf(mesh, axis_sets), Annotate(_, kWhat));
  RankGrid grid;
  grid.ranks_ = {member};
  for (size_t i = 0; i < groups.size(); ++i) {
    const int64_t size = groups[i].size();
    if (size > kMaxCells / static_cast<int64_t>(grid.ranks_.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhat, ": more than the ", kMaxCells, " cells allowed"));
    }
    grid.axes_.push_back({std::string(axis_sets[i]), size});
    grid.shape_[kMaxAxes - groups.size() + i] = size;
    std::vector<Rank> spread;
    for (const Rank rank : grid.ranks_) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<Rank> line,
                               groups[i].MembersWith(rank), Annotate(_, kWhat));
      spread.insert(spread.end(), line.begin(), line.end());
    }
    grid.ranks_ = std::move(spread);
  }
  return grid;
}

void RankGrid::AppendPlane(int64_t plane, int64_t most,
                           std::string* picture) const {
  const int64_t rows = std::min(shape_[1], most);
  const int64_t columns = std::min(shape_[2], most);
  // Wide enough for the longest number of the part that is shown.
  size_t width = 1;
  const auto text = [&](int64_t row, int64_t column) {
    const int64_t cell = (plane * shape_[1] + row) * shape_[2] + column;
    return absl::StrCat(ranks_[static_cast<size_t>(cell)].value());
  };
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      width = std::max(width, text(row, column).size());
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const std::string cell = text(row, column);
      absl::StrAppend(picture, column == 0 ? "" : " ",
                      std::string(width - cell.size(), ' '), cell);
    }
    absl::StrAppend(picture, columns < shape_[2] ? " ...\n" : "\n");
  }
  if (rows < shape_[1]) absl::StrAppend(picture, "...\n");
}

std::string RankGrid::ToString(int64_t most) const {
  most = std::max<int64_t>(most, 1);
  std::string picture;
  const int64_t planes = std::min(shape_[0], most);
  for (int64_t plane = 0; plane < planes; ++plane) {
    if (axes_.size() == kMaxAxes) {
      absl::StrAppend(&picture, axes_[0].name, " ", plane, ":\n");
    }
    AppendPlane(plane, most, &picture);
  }
  if (planes < shape_[0]) absl::StrAppend(&picture, "...\n");
  return picture;
}

}  // namespace tessera::tools
