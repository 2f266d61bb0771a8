#include "topology/mesh.h"

#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

void AppendName(std::string* out, const Axis& axis) {
  absl::StrAppend(out, axis.name);
}

std::vector<int64_t> SizesOf(std::span<const Axis> axes) {
  std::vector<int64_t> sizes;
  for (const Axis& axis : axes) sizes.push_back(axis.size.value());
  return sizes;
}

bool Has(std::span<const Axis> axes, std::string_view name) {
  return absl::c_any_of(axes,
                        [&](const Axis& axis) { return axis.name == name; });
}

absl::Status NotOneDivision(std::span<const std::string> axes) {
  return absl::InvalidArgumentError(absl::StrCat(
      "axes ", absl::StrJoin(axes, ", "),
      " share coordinates, so they have no groups together; name axes of one "
      "division of the mesh"));
}

}  // namespace

absl::StatusOr<Mesh> Mesh::Create(std::span<const Axis> axes, Rank first_rank) {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(axes));
  Mesh mesh;
  Division division;
  for (const Axis& axis : axes) {
    division.axes.push_back(axis);
    const Digit digit = {mesh.world_size_, axis.size.value()};
    division.digits.emplace_back(std::span(&digit, 1));
    mesh.world_size_ *= axis.size.value();
  }
  mesh.divisions_.push_back(std::move(division));
  if (first_rank < Rank(0) ||
      first_rank.value() >
          std::numeric_limits<int64_t>::max() - mesh.world_size_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "first rank ", first_rank.value(), " for a world of ", mesh.world_size_,
        "; expected 0 to 2^63-1 less the world size"));
  }
  mesh.first_rank_ = first_rank;
  return mesh;
}

absl::StatusOr<Mesh> Mesh::Create(std::span<const Axis> axes,
                                  std::string_view order, Rank first_rank) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Axis> ordered,
                           OrderAxes(axes, order));
  return Create(ordered, first_rank);
}

std::string Mesh::order() const {
  return absl::StrJoin(axes(), "-", AppendName);
}

absl::Status Mesh::CheckRank(Rank rank) const {
  if (Contains(rank)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank.value(), " is outside the mesh's ranks ",
      first_rank_.value(), " to ", (first_rank_ + (world_size_ - 1)).value()));
}

absl::Status Mesh::UnknownAxis(std::string_view axis) const {
  std::vector<std::string> names;
  for (const Division& division : divisions_) {
    for (const Axis& known : division.axes) {
      if (absl::c_find(names, known.name) == names.end()) {
        names.push_back(known.name);
      }
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown axis \"", axis.substr(0, 60), "\"; the mesh has ",
                   names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

const Digits* Mesh::FindAxis(std::string_view axis) const {
  for (const Division& division : divisions_) {
    for (size_t i = 0; i < division.axes.size(); ++i) {
      if (division.axes[i].name == axis) return &division.digits[i];
    }
  }
  return nullptr;
}

absl::StatusOr<size_t> Mesh::DivisionWith(
    std::span<const std::string> axes) const {
  for (const std::string& axis : axes) {
    if (FindAxis(axis) == nullptr) return UnknownAxis(axis);
  }
  for (size_t i = 0; i < divisions_.size(); ++i) {
    const bool has_all = absl::c_all_of(axes, [&](const std::string& axis) {
      return Has(divisions_[i].axes, axis);
    });
    if (has_all) return i;
  }
  return NotOneDivision(axes);
}

absl::StatusOr<Mesh> Mesh::Redivide(std::string_view axes,
                                    std::span<const Axis> parts) const {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(parts));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ParseAxisNames(axes));
  TESSERA_ASSIGN_OR_RETURN(const size_t number, DivisionWith(names));
  for (const Axis& part : parts) {
    if (FindAxis(part.name) == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the mesh already has an axis \"", part.name,
                     "\"; give the part another name"));
  }
  const Division& old = divisions_[number];
  const Digits whole = MakeGroups(old, names).inside_;
  const std::vector<int64_t> sizes = SizesOf(parts);
  absl::StatusOr<std::vector<Digits>> digits = whole.Split(sizes);
  if (!digits.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("axes ", axes, " of ", FormatAxes(old.axes), " hold ",
                     whole.count(), " ranks and cannot be divided into ",
                     FormatAxes(parts), ": ", digits.status().message()));
  }
  Division added;
  for (size_t i = 0; i < old.axes.size(); ++i) {
    if (absl::c_find(names, old.axes[i].name) == names.end()) {
      added.axes.push_back(old.axes[i]);
      added.digits.push_back(old.digits[i]);
    } else if (!digits->empty()) {  // The first that gives way.
      added.axes.insert(added.axes.end(), parts.begin(), parts.end());
      absl::c_move(*digits, std::back_inserter(added.digits));
      digits->clear();
    }
  }
  Mesh mesh = *this;
  mesh.divisions_.push_back(std::move(added));
  return mesh;
}

absl::StatusOr<AxisSize> Mesh::SizeOf(std::string_view axis) const {
  const Digits* digits = FindAxis(axis);
  if (digits == nullptr) return UnknownAxis(axis);
  return AxisSize(digits->count());
}

absl::StatusOr<Coordinates> Mesh::CoordinatesOf(Rank rank) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  int64_t offset = rank - first_rank_;
  Coordinates coordinates(axes().size());
  for (size_t i = 0; i < coordinates.size(); ++i) {
    coordinates[i] = offset % axes()[i].size.value();
    offset /= axes()[i].size.value();
  }
  return coordinates;
}

absl::StatusOr<Rank> Mesh::RankAt(std::span<const int64_t> coordinates) const {
  if (coordinates.size() != axes().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        coordinates.size(), " coordinates for a mesh of ", axes().size(),
        " axes (", order(), "); give one for each"));
  }
  int64_t offset = 0;
  int64_t stride = 1;
  for (size_t i = 0; i < coordinates.size(); ++i) {
    const Axis& axis = axes()[i];
    if (coordinates[i] < 0 || coordinates[i] >= axis.size.value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("coordinate ", coordinates[i], " is outside axis \"",
                       axis.name, "\", 0 to ", axis.size.value() - 1));
    }
    offset += coordinates[i] * stride;
    stride *= axis.size.value();
  }
  return first_rank_ + offset;
}

absl::StatusOr<int64_t> Mesh::CoordinateOf(Rank rank,
                                           std::string_view axis) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  const Digits* digits = FindAxis(axis);
  if (digits == nullptr) return UnknownAxis(axis);
  return digits->Gather(rank - first_rank_);
}

Groups Mesh::MakeGroups(const Division& division,
                        std::span<const std::string> axes) const {
  Digits inside;
  Digits outside;
  for (size_t i = 0; i < division.axes.size(); ++i) {
    const bool is_inside =
        absl::c_find(axes, division.axes[i].name) != axes.end();
    Digits& side = is_inside ? inside : outside;
    side = Union(side, division.digits[i]);
  }
  return Groups(first_rank_, std::move(inside), std::move(outside));
}

absl::StatusOr<Groups> Mesh::GroupsAlong(std::string_view axes) const {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ParseAxisNames(axes));
  return GroupsAlong(names);
}

absl::StatusOr<Groups> Mesh::GroupsAlong(
    std::span<const std::string> axes) const {
  TESSERA_ASSIGN_OR_RETURN(const size_t number, DivisionWith(axes));
  return MakeGroups(divisions_[number], axes);
}

}  // namespace tessera::topology
