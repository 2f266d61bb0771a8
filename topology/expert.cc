#include "topology/expert.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::topology {
namespace {

// The divisors of n that the message can list: all of them up to the 12th.
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

}  // namespace

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
        absl::StrCat("expert axes are taken out of dp, cp and tp, and the mesh "
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

}  // namespace tessera::topology
