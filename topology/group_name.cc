#include "topology/group_name.h"

#include <array>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

constexpr std::string_view kGroup = "_group";

// The names of a division's axes that are not in `axes`, canonically.
std::vector<std::string> OtherAxes(std::span<const Axis> division,
                                   std::span<const std::string> axes) {
  std::vector<std::string> others;
  for (const Axis& axis : division) {
    if (absl::c_find(axes, axis.name) == axes.end()) {
      others.push_back(axis.name);
    }
  }
  absl::c_sort(others, CanonicalAxisLess);
  return others;
}

absl::Status NoSuchGroup(const Mesh& mesh, std::string_view name,
                         std::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name.substr(0, 80), "\" names no group of the mesh ",
                   FormatAxes(mesh.axes()), ": ", reason,
                   "; expected a name such as tp_group_dp1_pp0"));
}

// Takes "_tp3" off the front of `text` and returns the 3.
absl::StatusOr<int64_t> ConsumeCoordinate(std::string_view axis,
                                          std::string_view* text) {
  if (!absl::ConsumePrefix(text, absl::StrCat("_", axis))) {
    return absl::InvalidArgumentError(
        absl::StrCat("its coordinate along ", axis, " is missing"));
  }
  const std::string_view digits = text->substr(0, text->find('_'));
  int64_t coordinate = 0;
  if (!absl::SimpleAtoi(digits, &coordinate) ||
      absl::StrCat(coordinate) != digits) {
    return absl::InvalidArgumentError(
        absl::StrCat("its coordinate along ", axis, " is no number"));
  }
  text->remove_prefix(digits.size());
  return coordinate;
}

// The first rank of the group along `axes` at the coordinates "_dp1_pp0".
absl::StatusOr<Rank> FindHead(const Mesh& mesh,
                              std::span<const std::string> axes,
                              std::string_view coordinates) {
  TESSERA_ASSIGN_OR_RETURN(const size_t division, mesh.DivisionWith(axes));
  Rank head = mesh.first_rank();
  for (const std::string& axis : OtherAxes(mesh.division(division), axes)) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t coordinate,
                             ConsumeCoordinate(axis, &coordinates));
    TESSERA_ASSIGN_OR_RETURN(const Groups along, mesh.GroupsAlong(axis));
    if (coordinate >= along.size() || coordinate < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("coordinate ", coordinate, " is outside axis ", axis,
                       ", 0 to ", along.size() - 1));
    }
    TESSERA_ASSIGN_OR_RETURN(const Rank at, along.RankAt(0, coordinate));
    head = head + (at - mesh.first_rank());
  }
  if (!coordinates.empty()) {
    return absl::InvalidArgumentError("more follows its coordinates");
  }
  return head;
}

int64_t SizeOr1(const Mesh& mesh, std::string_view axis) {
  for (const Axis& known : mesh.axes()) {
    if (known.name == axis) return known.size.value();
  }
  return 1;
}

}  // namespace

absl::StatusOr<std::string> GroupName(const Mesh& mesh, std::string_view axes,
                                      Rank rank) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> names,
                           ParseAxisNames(axes));
  TESSERA_ASSIGN_OR_RETURN(const size_t division, mesh.DivisionWith(names));
  absl::c_sort(names, CanonicalAxisLess);
  std::string name = absl::StrCat(absl::StrJoin(names, "-"), kGroup);
  for (const std::string& axis : OtherAxes(mesh.division(division), names)) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t coordinate,
                             mesh.CoordinateOf(rank, axis));
    absl::StrAppend(&name, "_", axis, coordinate);
  }
  return name;
}

absl::StatusOr<std::vector<Rank>> FindGroup(const Mesh& mesh,
                                            std::string_view name) {
  // An axis may itself be called "my_group": every place is tried.
  for (size_t end = name.find(kGroup); end != std::string_view::npos;
       end = name.find(kGroup, end + 1)) {
    const absl::StatusOr<std::vector<std::string>> axes =
        ParseAxisNames(name.substr(0, end));
    if (!axes.ok() || !mesh.DivisionWith(*axes).ok()) continue;
    absl::StatusOr<Rank> head =
        FindHead(mesh, *axes, name.substr(end + kGroup.size()));
    if (!head.ok()) return NoSuchGroup(mesh, name, head.status().message());
    TESSERA_ASSIGN_OR_RETURN(const Groups groups, mesh.GroupsAlong(*axes));
    return groups.MembersWith(*head);
  }
  return NoSuchGroup(mesh, name, "it does not begin with axes and \"_group\"");
}

std::string DescribeRank(const Mesh& mesh, Rank rank) {
  constexpr std::array<std::string_view, 4> kAlways = {"tp", "cp", "pp", "dp"};
  std::vector<std::string> parts;
  const auto append = [&](std::string_view axis) {
    parts.push_back(absl::StrCat(absl::AsciiStrToUpper(axis), "(",
                                 SizeOr1(mesh, axis), ")"));
  };
  for (std::string_view axis : kAlways) append(axis);
  for (const Axis& axis : mesh.axes()) {
    if (absl::c_find(kAlways, axis.name) == kAlways.end()) append(axis.name);
  }
  parts.push_back(absl::StrCat("Rank(", rank.value(), ")"));
  return absl::StrJoin(parts, "-");
}

}  // namespace tessera::topology
