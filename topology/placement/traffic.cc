#include "topology/placement/traffic.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::topology {
namespace {

bool IsAmount(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

std::string_view CollectiveKindName(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKinds> kNames = {
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<Axis> AxesOf(std::span<const AxisTraffic> traffic) {
  std::vector<Axis> axes;
  for (const AxisTraffic& item : traffic) axes.push_back(item.axis);
  return axes;
}

absl::Status ValidateTraffic(std::span<const AxisTraffic> traffic) {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(AxesOf(traffic)));
  for (const AxisTraffic& item : traffic) {
    for (const Transfer& transfer : item.transfers) {
      if (IsAmount(transfer.bytes) && IsAmount(transfer.times)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "axis ", item.axis.name, ": ", CollectiveKindName(transfer.kind),
          " has ", transfer.bytes, " bytes, ", transfer.times,
          " times; use finite numbers that are at least 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::topology
