#include "tools/train/settings/mesh/parse_mesh.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "topology/axis.h"

namespace tessera::train {
namespace {

// Null where training has no such axis.
int64_t* SizeOf(std::string_view axis, MeshSizes& sizes) {
  if (axis == "dp") return &sizes.dp;
  if (axis == "pp") return &sizes.pp;
  if (axis == "cp") return &sizes.cp;
  if (axis == "tp") return &sizes.tp;
  return nullptr;
}

}  // namespace

absl::StatusOr<MeshSizes> ParseMesh(std::string_view mesh) {
  if (!absl::c_all_of(mesh, absl::ascii_isprint)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(mesh), " has characters that do not print"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<topology::Axis> axes,
                           topology::ParseAxes(mesh));
  MeshSizes sizes;
  for (const topology::Axis& axis : axes) {
    int64_t* const size = SizeOf(axis.name, sizes);
    if (size == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no axis ", Quoted(axis.name),
                       "; the axes are dp, pp, cp and tp"));
    }
    *size = axis.size.value();
  }
  if (sizes.world_size() <= kMostTrainRanks) return sizes;
  return absl::InvalidArgumentError(absl::StrCat(
      sizes.world_size(), " ranks; at most ", kMostTrainRanks, " are allowed"));
}

std::string FormatMesh(const MeshSizes& sizes) {
  return absl::StrCat("dp", sizes.dp, ",pp", sizes.pp, ",cp", sizes.cp, ",tp",
                      sizes.tp);
}

}  // namespace tessera::train
