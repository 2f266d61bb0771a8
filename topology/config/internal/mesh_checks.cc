#include "topology/config/internal/mesh_checks.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"

namespace tessera::topology::internal {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// The product of the sizes other than `without`, or nothing where it exceeds
// 2^63-1.
std::optional<int64_t> Product(std::span<const NamedSize> axes,
                               std::string_view without = "") {
  int64_t product = 1;
  for (const auto& [name, size] : axes) {
    if (name == without) continue;
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

ConfigProblem TooManyRanks(std::span<const NamedSize> axes) {
  const NamedSize largest = *absl::c_max_element(
      axes, [](const auto& a, const auto& b) { return a.size < b.size; });
  const std::optional<int64_t> others = Product(axes, largest.name);
  if (others.has_value()) {
    const int64_t most = kMax / *others;
    return SizeProblem(
        largest.name, largest.size,
        absl::StrCat("at most ", most, ", so that dp * cp * tp * pp <= 2^63-1"),
        most, most == 1 ? "" : " or less");
  }
  return {.field = std::string(largest.name),
          .given = absl::StrCat(largest.size),
          .allowed = "sizes with dp * cp * tp * pp <= 2^63-1",
          .fix = "make several of dp, cp, tp and pp smaller",
          .replacement = std::nullopt};
}

// `fitting` is the dp with which the sizes multiply to `world_size`.
ConfigProblem WrongDp(const MeshShape& shape, int64_t fitting,
                      int64_t world_size) {
  const int64_t others = shape.tp * shape.cp * shape.pp;
  const int64_t ranks = others * shape.dp;
  return SizeProblem(
      "dp", shape.dp,
      absl::StrCat(fitting, " for a world of ", world_size,
                   " ranks, as cp * tp * pp = ", others),
      fitting,
      absl::StrCat(", or start ", ranks, ranks == 1 ? " rank" : " ranks"));
}

// No dp fits: the sizes multiply to `ranks`, those but dp to `others`.
ConfigProblem WrongWorld(int64_t world_size, int64_t ranks, int64_t others) {
  const std::string product = absl::StrCat("dp * cp * tp * pp = ", ranks);
  if (world_size < 1) {
    return SizeProblem("world_size", world_size,
                       absl::StrCat("at least 1; for these sizes ", product),
                       ranks);
  }
  return SizeProblem(
      "world_size", world_size,
      absl::StrCat(product, "; no dp fits, as cp * tp * pp = ", others,
                   " does not divide ", world_size),
      ranks,
      ", or choose cp, tp and pp whose product divides the number of ranks");
}

}  // namespace

ConfigProblems CheckWorld(const MeshShape& shape) {
  ConfigProblems problems;
  const auto axes = WorldAxes(shape);
  for (const auto& [name, size] : axes) {
    if (size >= 1) continue;
    problems.push_back(SizeProblem(name, size, "at least 1", 1, " or more"));
  }
  if (problems.empty() && !Product(axes)) {
    problems.push_back(TooManyRanks(axes));
  }
  return problems;
}

ConfigProblems CheckMesh(const MeshShape& shape) {
  ConfigProblems problems = CheckWorld(shape);
  ConfigProblems of_order;
  const std::vector<std::string> order = CheckOrder(shape, of_order);
  if (problems.empty()) {
    Append(CheckExperts(shape, order), problems);
  } else if (shape.ep < 1) {
    problems.push_back(
        SizeProblem("ep", shape.ep, "at least 1", 1, " or more"));
  }
  Append(std::move(of_order), problems);
  return problems;
}

ConfigProblems CheckWorldSize(const MeshShape& shape, int64_t world_size) {
  if (!CheckWorld(shape).empty()) {
    if (world_size >= 1) return {};
    return {SizeProblem("world_size", world_size, "at least 1", 1)};
  }
  const int64_t others = shape.tp * shape.cp * shape.pp;
  const int64_t ranks = others * shape.dp;
  if (world_size == ranks) return {};
  if (world_size >= 1 && world_size % others == 0) {
    return {WrongDp(shape, world_size / others, world_size)};
  }
  return {WrongWorld(world_size, ranks, others)};
}

}  // namespace tessera::topology::internal
