// The grid of a mesh's ranks along sets of its axes.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "topology/axis.h"
#include "topology/device_mesh.h"
#include "topology/groups.h"

namespace tessera::topology {
namespace {

// The groups along each set, all of one division and no axis in two sets.
absl::StatusOr<std::vector<Groups>> GroupsOf(
    const Mesh& mesh, std::span<const std::string_view> axis_sets) {
  std::vector<Groups> groups;
  std::vector<std::string> all;
  for (const std::string_view axis_set : axis_sets) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names,
                             ParseAxisNames(axis_set));
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

absl::StatusOr<DeviceMesh> DeviceMesh::FromMesh(
    const Mesh& mesh, std::span<const std::string_view> axis_sets,
    Rank member) {
  constexpr std::string_view kWhat = "device mesh of ranks";
  if (axis_sets.empty() || axis_sets.size() > kMaxAxes) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWhat, ": ", axis_sets.size(),
                     " sets of axes are given; choose 1, 2 or 3"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Groups> groups,
                           GroupsOf(mesh, axis_sets), Annotate(_, kWhat));
  std::vector<GridAxis> axes;
  std::vector<Rank> ranks = {member};
  for (size_t i = 0; i < groups.size(); ++i) {
    axes.push_back({std::string(axis_sets[i]), groups[i].size()});
    if (groups[i].size() > kMaxCells / static_cast<int64_t>(ranks.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(kWhat, ": more than the ", kMaxCells, " cells allowed"));
    }
    std::vector<Rank> spread;
    for (const Rank rank : ranks) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<Rank> line,
                               groups[i].MembersWith(rank), Annotate(_, kWhat));
      spread.insert(spread.end(), line.begin(), line.end());
    }
    ranks = std::move(spread);
  }
  std::vector<DeviceId> devices;
  devices.reserve(ranks.size());
  for (const Rank rank : ranks) devices.push_back(DeviceId(rank.value()));
  return Create(std::move(axes), devices);
}

absl::StatusOr<DeviceMesh> DeviceMesh::FromMesh(
    const Mesh& mesh, std::initializer_list<std::string_view> axis_sets) {
  return FromMesh(mesh, std::span(axis_sets.begin(), axis_sets.size()),
                  mesh.first_rank());
}

}  // namespace tessera::topology
