// Axis: a named axis of a mesh; the texts of lists of axes, and their order.
#ifndef TESSERA_TOPOLOGY_AXIS_H_
#define TESSERA_TOPOLOGY_AXIS_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/rank.h"

namespace tessera::topology {

// A dimension of parallelism and the number of ranks along it. The usual names
// are dp (data), tp (tensor), pp (pipeline), cp (context) and ep (expert); any
// other name of lower-case letters and underscores is valid too.
struct Axis {
  std::string name;
  AxisSize size;

  friend bool operator==(const Axis&, const Axis&) = default;
};

// A mesh has at most this many axes.
inline constexpr size_t kMaxAxes = 16;

// InvalidArgument, naming every such axis, if an axis has an invalid or
// repeated name or a size below 1; also if there are more than kMaxAxes axes or
// their sizes multiply to more than 2^63-1 ranks. An empty list is a world of
// one rank.
absl::Status ValidateAxes(std::span<const Axis> axes);

// Reads the compact form, "dp2,pp2,tp2" or "dp=2,pp=2,tp=2", in the order of
// the text. InvalidArgument if an item is not a name with a size, and as
// ValidateAxes.
absl::StatusOr<std::vector<Axis>> ParseAxes(std::string_view text);

// The compact form of `axes`: "dp2,pp2,tp2". ParseAxes restores the axes.
std::string FormatAxes(std::span<const Axis> axes);

// Sorts `axes` by an order string of names joined by "-", fastest-varying
// first, such as Megatron-LM's "tp-cp-ep-dp-pp". The order may name usual axes
// that are absent (their size is 1) and must name every axis that is present.
// InvalidArgument if it omits or repeats an axis or names an unknown one.
absl::StatusOr<std::vector<Axis>> OrderAxes(std::span<const Axis> axes,
                                            std::string_view order);

// Splits a set of axis names, "tp,pp" or "tp-pp". InvalidArgument if it is
// empty or holds an empty or repeated name.
absl::StatusOr<std::vector<std::string>> ParseAxisNames(std::string_view text);

// The order of names in listings that must not depend on a mesh's order: dp,
// tp, pp, cp, ep, then every other name alphabetically.
bool CanonicalAxisLess(std::string_view a, std::string_view b);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_AXIS_H_
