#include "topology/mesh.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
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

constexpr std::array<Preset, 5> kPresets = {{
    {"megatron", "tp-cp-ep-dp-pp",
     "Megatron-LM's default: tensor fastest, pipeline slowest"},
    {"megatron-tp-pp-dp", "tp-cp-ep-pp-dp",
     "Megatron-LM with --use-tp-pp-dp-mapping: data slowest"},
    {"megatron-moe", "tp-ep-cp-dp-pp",
     "Megatron-LM's order with experts next to tensor"},
    {"pipeline-tensor-data", "pp-tp-cp-ep-dp",
     "pipeline fastest, then tensor, then data: dp_rank = r / (pp * tp)"},
    {"data-pipeline-context-tensor", "tp-cp-ep-pp-dp",
     "data, pipeline, context, tensor from slowest to fastest: torchtitan and "
     "picotron"},
}};

// The divisors of n for the message, at most the first 12.
std::string Divisors(int64_t n) {
  constexpr size_t kMost = 12;
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n / d && divisors.size() < kMost; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  for (size_t i = divisors.size(); i-- > 0 && divisors.size() < kMost;) {
    const int64_t other = n / divisors[i];
    if (other != divisors[i]) divisors.push_back(other);
  }
  absl::c_sort(divisors);
  return absl::StrCat(absl::StrJoin(divisors, ", "),
                      divisors.size() == kMost ? ", ..." : "");
}

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

int64_t SizeOr1(const Mesh& mesh, std::string_view axis) {
  for (const Axis& known : mesh.axes()) {
    if (known.name == axis) return known.size.value();
  }
  return 1;
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
    } else if (!digits->empty()) {  // The first replaced axis.
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

std::span<const Preset> Presets() { return kPresets; }

absl::StatusOr<Preset> FindPreset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset;
  }
  return absl::NotFoundError(absl::StrCat(
      "no preset \"", name.substr(0, 60), "\"; there are ",
      absl::StrJoin(kPresets, ", ", [](std::string* out, const Preset& preset) {
        absl::StrAppend(out, preset.name);
      })));
}

absl::StatusOr<Mesh> WithExpertAxes(const Mesh& mesh, AxisSize ep,
                                    AxisSize etp) {
  std::vector<std::string> names;
  int64_t product = 1;
  for (const Axis& axis : mesh.axes()) {
    if (axis.name != "dp" && axis.name != "cp" && axis.name != "tp") continue;
    names.push_back(axis.name);
    product *= axis.size.value();
  }
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert axes are divided from dp, cp and tp, but the mesh "
                     "\"",
                     mesh.order(), "\" has none of them"));
  }
  const bool fits = ep >= AxisSize(1) && etp >= AxisSize(1) &&
                    product % ep.value() == 0 &&
                    product / ep.value() % etp.value() == 0;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ep ", ep.value(), " x etp ", etp.value(), " does not divide ",
        absl::StrJoin(names, " x "), " = ", product,
        "; choose sizes whose product is one of ", Divisors(product)));
  }
  const std::vector<Axis> parts = {
      {"etp", etp},
      {"ep", ep},
      {"edp", AxisSize(product / ep.value() / etp.value())}};
  return mesh.Redivide(absl::StrJoin(names, ","), parts);
}

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
