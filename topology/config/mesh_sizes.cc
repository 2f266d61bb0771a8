#include "topology/config/mesh_sizes.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "topology/mesh.h"
#include "topology/rank.h"

namespace tessera::topology {
namespace {

// The sizes as given; 0 if an axis is not named.
struct NamedSizes {
  int64_t dp = 0, dp_replicate = 0, dp_shard = 0;
  int64_t pp = 0, cp = 0, tp = 0, ep = 0;
};

// Null if training has no such axis.
int64_t* FindSize(std::string_view axis, NamedSizes& sizes) {
  if (axis == "dp") return &sizes.dp;
  if (axis == "dp_replicate") return &sizes.dp_replicate;
  if (axis == "dp_shard") return &sizes.dp_shard;
  if (axis == "pp") return &sizes.pp;
  if (axis == "cp") return &sizes.cp;
  if (axis == "tp") return &sizes.tp;
  if (axis == "ep") return &sizes.ep;
  return nullptr;
}

// Checks dp and its two parts, any of which may be omitted.
absl::Status CheckParts(const NamedSizes& given) {
  if (given.dp == 0) return absl::OkStatus();
  if (given.dp_replicate != 0 && given.dp_shard != 0) {
    if (given.dp_replicate * given.dp_shard == given.dp) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("dp", given.dp, " is not dp_replicate", given.dp_replicate,
                     " x dp_shard", given.dp_shard, ": leave dp out"));
  }
  const int64_t part = std::max(given.dp_replicate, given.dp_shard);
  if (part == 0 || given.dp % part == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(given.dp_replicate != 0 ? "dp_replicate" : "dp_shard", part,
                   " does not divide dp", given.dp));
}

MeshSizes SizesOf(const NamedSizes& given) {
  const auto or_one = [](int64_t size) { return std::max<int64_t>(size, 1); };
  MeshSizes sizes = {.dp = given.dp,
                     .pp = or_one(given.pp),
                     .cp = or_one(given.cp),
                     .tp = or_one(given.tp),
                     .dp_replicate = or_one(given.dp_replicate),
                     .ep = or_one(given.ep)};
  if (given.dp == 0) sizes.dp = sizes.dp_replicate * or_one(given.dp_shard);
  if (given.dp_shard != 0) sizes.dp_replicate = sizes.dp / given.dp_shard;
  return sizes;
}

// Fastest first.
std::vector<Axis> AxesOf(const MeshSizes& sizes) {
  std::vector<Axis> axes;
  for (const MeshAxis axis : sizes.order) {
    axes.push_back(
        {std::string(MeshAxisName(axis)), AxisSize(sizes.SizeOf(axis))});
  }
  return axes;
}

// The axes in the order of the text form.
std::vector<Axis> TextAxesOf(const MeshSizes& sizes) {
  std::vector<Axis> axes = {{"dp", AxisSize(sizes.dp)}};
  if (sizes.dp_replicate > 1) {
    axes = {{"dp_replicate", AxisSize(sizes.dp_replicate)},
            {"dp_shard", AxisSize(sizes.dp_shard())}};
  }
  axes.push_back({"pp", AxisSize(sizes.pp)});
  axes.push_back({"cp", AxisSize(sizes.cp)});
  axes.push_back({"tp", AxisSize(sizes.tp)});
  if (sizes.ep > 1) axes.push_back({"ep", AxisSize(sizes.ep)});
  return axes;
}

}  // namespace

std::string_view MeshAxisName(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kTp:
      return "tp";
    case MeshAxis::kCp:
      return "cp";
    case MeshAxis::kDp:
      return "dp";
    case MeshAxis::kPp:
      return "pp";
  }
  return "none";
}

std::string FormatAxisOrder(const AxisOrder& order) {
  return absl::StrJoin(order, "-", [](std::string* text, MeshAxis axis) {
    absl::StrAppend(text, MeshAxisName(axis));
  });
}

int64_t MeshSizes::SizeOf(MeshAxis axis) const {
  switch (axis) {
    case MeshAxis::kTp:
      return tp;
    case MeshAxis::kCp:
      return cp;
    case MeshAxis::kDp:
      return dp;
    case MeshAxis::kPp:
      return pp;
  }
  return 1;
}

int64_t MeshSizes::StrideOf(MeshAxis axis) const {
  int64_t stride = 1;
  for (const MeshAxis faster : order) {
    if (faster == axis) break;
    stride *= SizeOf(faster);
  }
  return stride;
}

absl::StatusOr<AxisOrder> MeshSizes::ParseOrder(std::string_view text) const {
  std::vector<Axis> axes = AxesOf(*this);
  std::erase_if(axes,
                [](const Axis& axis) { return axis.size == AxisSize(1); });
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> ordered,
                           OrderAxes(axes, text));
  // Axes of size 1 keep their positions in the default order.
  AxisOrder result = kDefaultAxisOrder;
  auto next = ordered.begin();
  for (MeshAxis& place : result) {
    if (SizeOf(place) == 1) continue;
    const std::string& name = next++->name;
    place = *absl::c_find_if(kDefaultAxisOrder, [&](MeshAxis axis) {
      return MeshAxisName(axis) == name;
    });
  }
  return result;
}

absl::StatusOr<MeshSizes> MeshSizes::Parse(std::string_view text) {
  if (!absl::c_all_of(text, absl::ascii_isprint)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(text), " has characters that do not print"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> axes, ParseAxes(text));
  NamedSizes given;
  for (const Axis& axis : axes) {
    int64_t* const size = FindSize(axis.name, given);
    if (size == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown axis ", Quoted(axis.name),
                       "; the axes are dp (or dp_replicate and dp_shard), pp, "
                       "cp, tp and ep"));
    }
    *size = axis.size.value();
  }
  TESSERA_RETURN_IF_ERROR(CheckParts(given));
  const MeshSizes sizes = SizesOf(given);
  TESSERA_RETURN_IF_ERROR(sizes.Validate());
  return sizes;
}

std::string MeshSizes::ToString() const {
  return FormatAxes(TextAxesOf(*this));
}

std::string MeshSizes::ToFlag() const {
  std::vector<Axis> axes = TextAxesOf(*this);
  std::erase_if(axes,
                [](const Axis& axis) { return axis.size == AxisSize(1); });
  return axes.empty() ? "dp1" : FormatAxes(axes);
}

absl::Status MeshSizes::Validate() const {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(AxesOf(*this)));
  std::vector<std::string> problems;
  if (dp_replicate < 1 || dp % dp_replicate != 0) {
    problems.push_back(
        absl::StrCat("dp_replicate", dp_replicate, " does not divide dp", dp));
  }
  if (ep < 1 || (cp * dp) % ep != 0) {
    problems.push_back(
        absl::StrCat("ep", ep, " does not divide cp x dp, which is ", cp, " x ",
                     dp, "; experts are divided among these ranks"));
  }
  if (world_size() > kMaxRanks) {
    problems.push_back(absl::StrCat(world_size(), " ranks; at most ", kMaxRanks,
                                    " are allowed"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

absl::StatusOr<Mesh> MeshSizes::MakeMesh() const {
  TESSERA_RETURN_IF_ERROR(Validate());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create(AxesOf(*this)));
  if (dp_replicate > 1) {
    const Axis parts[] = {{"dp_shard", AxisSize(dp_shard())},
                          {"dp_replicate", AxisSize(dp_replicate)}};
    TESSERA_ASSIGN_OR_RETURN(mesh, mesh.Redivide("dp", parts));
  }
  if (ep == 1) return mesh;
  const Axis experts[] = {{"ep", AxisSize(ep)}, {"edp", AxisSize(edp())}};
  return mesh.Redivide("cp,dp", experts);
}

}  // namespace tessera::topology
