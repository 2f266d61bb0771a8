// The check of the order: each axis once, none missing.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "topology/config/internal/mesh_checks.h"

namespace tessera::topology::internal {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"tp", "cp", "ep", "dp",
                                                    "pp"};
constexpr size_t kMaxOrderLength = 64;

std::vector<std::string> SplitOrder(std::string_view order) {
  std::vector<std::string> names;
  for (std::string_view name : absl::StrSplit(order, absl::ByAnyChar(",-"))) {
    names.emplace_back(absl::StripAsciiWhitespace(name));
  }
  return names;
}

// `order` without what does not belong there and with what it misses.
std::vector<std::string> MendOrder(std::span<const std::string> order) {
  std::vector<std::string> mended;
  const auto add = [&mended](std::string_view name) {
    const bool known = absl::c_linear_search(kNames, name);
    if (known && !absl::c_linear_search(mended, name)) {
      mended.emplace_back(name);
    }
  };
  absl::c_for_each(order, add);
  absl::c_for_each(kNames, add);
  return mended;
}

// What is wrong with the names of an order, or "".
std::string WrongNames(const MeshShape& shape,
                       std::span<const std::string> order) {
  for (auto name = order.begin(); name != order.end(); ++name) {
    if (!absl::c_linear_search(kNames, *name)) return "has an unknown name";
    if (std::find(order.begin(), name, *name) != name) return "names one twice";
  }
  for (const NamedSize& axis : WorldAxes(shape)) {
    const bool needed = axis.name != "cp" || axis.size != 1;
    if (needed && !absl::c_linear_search(order, axis.name)) {
      return absl::StrCat("misses ", axis.name);
    }
  }
  return "";
}

std::string Shown(std::string_view order) {
  return absl::StrCat("\"", absl::CHexEscape(order.substr(0, kMaxOrderLength)),
                      order.size() > kMaxOrderLength ? "..." : "", "\"");
}

}  // namespace

std::vector<std::string> CheckOrder(const MeshShape& shape,
                                    ConfigProblems& problems) {
  std::vector<std::string> order =
      SplitOrder(shape.order.substr(0, kMaxOrderLength));
  const std::string wrong =
      shape.order.size() > kMaxOrderLength
          ? absl::StrCat("has more than ", kMaxOrderLength, " characters")
          : WrongNames(shape, order);
  if (wrong.empty()) return order;
  order = MendOrder(order);
  const std::string mended = absl::StrJoin(order, "-");
  problems.push_back(
      {.field = "order",
       .given = absl::StrCat(Shown(shape.order), ", which ", wrong),
       .allowed = "tp, cp, ep, dp and pp, each once, joined by -",
       .fix = absl::StrCat("set order to ", mended),
       .replacement = mended});
  return order;
}

}  // namespace tessera::topology::internal
