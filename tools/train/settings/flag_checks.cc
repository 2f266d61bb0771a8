#include "tools/train/settings/flag_checks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"
#include "tools/cli/cli.h"

namespace tessera::train {
namespace {

// The nearest name, or the first one.
std::string_view Example(std::string_view value,
                         std::span<const std::string_view> names) {
  const std::string_view nearest = NearestName(value, names);
  return value.empty() ? names.front() : nearest;
}

}  // namespace

absl::Status RefuseFlag(std::string_view flag, const absl::AlphaNum& value,
                        const absl::AlphaNum& what) {
  return tools::FlagError(flag, absl::CHexEscape(value.Piece()),
                          absl::InvalidArgumentError(what.Piece()));
}

absl::Status CheckRange(std::string_view flag, int64_t value,
                        WholeRange range) {
  if (range.least <= value && value <= range.most) return absl::OkStatus();
  const bool is_low = value < range.least;
  const int64_t end = is_low ? range.least : range.most;
  return RefuseFlag(flag, value,
                    absl::StrCat("must be at ", is_low ? "least " : "most ",
                                 end, ", such as --", flag, "=", end));
}

absl::Status CheckRange(std::string_view flag, double value,
                        const RealRange& range) {
  const bool above =
      range.with_least ? value >= range.least : value > range.least;
  if (std::isfinite(value) && above && value < range.below) {
    return absl::OkStatus();
  }
  return RefuseFlag(
      flag, value,
      absl::StrCat("must be ", range.with_least ? "at least " : "more than ",
                   range.least,
                   std::isfinite(range.below)
                       ? absl::StrCat(" and below ", range.below)
                       : " and finite",
                   ", such as --", flag, "=", range.example));
}

absl::Status CheckChoice(std::string_view flag, std::string_view value,
                         std::span<const std::string_view> names) {
  if (absl::c_linear_search(names, value)) return absl::OkStatus();
  return RefuseFlag(
      flag, value,
      absl::StrCat("must be one of ", absl::StrJoin(names, ", "),
                   ", such as --", flag, "=", Example(value, names)));
}

}  // namespace tessera::train
