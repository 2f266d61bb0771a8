// The check of ep: groups of experts' ranks must fill each pipeline stage.
#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "topology/config/internal/divisors.h"
#include "topology/config/internal/mesh_checks.h"

namespace tessera::topology::internal {
namespace {

// The sizes of the stretches of neighbouring ranks into which dp, cp and tp cut
// a pipeline stage: one where pp does not lie between them.
std::vector<int64_t> Stretches(const MeshShape& shape,
                               std::span<const std::string> order) {
  std::vector<int64_t> stretches = {1};
  for (const std::string& name : order) {
    for (const NamedSize& axis : WorldAxes(shape)) {
      if (axis.name != name) continue;
      if (name == "pp") {
        if (axis.size > 1 && stretches.back() > 1) stretches.push_back(1);
      } else {
        stretches.back() *= axis.size;
      }
    }
  }
  return stretches;
}

// Whether groups of `ep` ranks end where the stretches let them: each stretch
// is taken whole until one holds the rest evenly.
bool Fits(int64_t ep, std::span<const int64_t> stretches) {
  for (const int64_t stretch : stretches) {
    if (stretch % ep == 0) return true;
    if (ep % stretch != 0) return false;
    ep /= stretch;
  }
  return ep == 1;
}

std::string ListOf(std::span<const int64_t> sizes) {
  constexpr size_t kMost = 12;
  if (sizes.size() <= kMost) return absl::StrJoin(sizes, ", ");
  return absl::StrCat(absl::StrJoin(sizes.first(kMost), ", "), ", ... up to ",
                      sizes.back());
}

// `sizes` ascends and does not contain `wanted`.
ConfigProblem NearestSizes(int64_t wanted, std::string_view allowed,
                           std::span<const int64_t> sizes) {
  const auto above = absl::c_upper_bound(sizes, wanted);
  if (above == sizes.begin()) return SizeProblem("ep", wanted, allowed, *above);
  const int64_t below = *(above - 1);
  if (above == sizes.end()) return SizeProblem("ep", wanted, allowed, below);
  return SizeProblem("ep", wanted, allowed, below,
                     absl::StrCat(" or ", *above));
}

}  // namespace

ConfigProblems CheckExperts(const MeshShape& shape,
                            std::span<const std::string> order) {
  if (shape.ep < 1) {
    return {SizeProblem("ep", shape.ep, "at least 1", 1, " or more")};
  }
  const std::vector<int64_t> stretches = Stretches(shape, order);
  if (Fits(shape.ep, stretches)) return {};
  const int64_t ranks = shape.dp * shape.cp * shape.tp;
  std::vector<int64_t> sizes =
      DivisorsOfProduct(std::array<int64_t, 3>{shape.dp, shape.cp, shape.tp});
  std::string allowed = absl::StrCat("a divisor of dp * cp * tp = ", ranks);
  if (ranks % shape.ep == 0) {
    absl::StrAppend(&allowed, " whose groups do not reach across pp unevenly");
  }
  std::erase_if(sizes, [&](int64_t size) { return !Fits(size, stretches); });
  absl::StrAppend(&allowed, ": ", ListOf(sizes));
  return {NearestSizes(shape.ep, allowed, sizes)};
}

}  // namespace tessera::topology::internal
