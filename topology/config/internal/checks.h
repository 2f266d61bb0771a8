// Checks: what can be wrong with the parts of a ParallelConfig.
//
// Every function returns the problems it finds, none where there are none. A
// check that depends on sizes that are themselves wrong is left out until they
// are right. A replacement always lies in the allowed range; no range printed
// is empty.
#ifndef TESSERA_TOPOLOGY_CONFIG_INTERNAL_CHECKS_H_
#define TESSERA_TOPOLOGY_CONFIG_INTERNAL_CHECKS_H_

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "topology/config/options/config_problem.h"
#include "topology/config/options/named_enum.h"
#include "topology/config/options/schedule_kind.h"

namespace tessera::topology::internal {

using ConfigProblems = std::vector<ConfigProblem>;

struct MeshShape {
  int64_t dp = 1;
  int64_t tp = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t ep = 1;
  std::string_view order;
};

struct PipelineShape {
  int64_t pp = 1;
  int64_t layers = 1;
  int64_t micro_batch_size = 1;
  int64_t micro_batches = 1;
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int64_t chunks = 1;
};

// dp, tp, pp and cp: each at least 1, their product at most 2^63-1.
ConfigProblems CheckWorld(const MeshShape& shape);

// CheckWorld, ep and the order.
ConfigProblems CheckMesh(const MeshShape& shape);

// Whether the sizes multiply to `world_size`.
ConfigProblems CheckWorldSize(const MeshShape& shape, int64_t world_size);

// Layers, micro-batches and chunks as the schedule wants them. A pp below 1 is
// CheckWorld's to report.
ConfigProblems CheckPipeline(const PipelineShape& shape);

// device_memory and timeout.
ConfigProblems CheckLimits(ByteSize device_memory, absl::Duration timeout);

// A problem with an integer field: "set `field` to `value`, `remark`".
ConfigProblem SizeProblem(std::string_view field, int64_t given,
                          std::string_view allowed, int64_t value,
                          std::string_view remark = "");

// An enumeration must have a value of its table.
template <NamedEnum Enum>
ConfigProblems CheckChoice(std::string_view field, Enum value) {
  if (!EnumName(value).empty()) return {};
  const std::string first(EnumNames<Enum>::kTable[0].name);
  return {{.field = std::string(field),
           .given = absl::StrCat(static_cast<int64_t>(value)),
           .allowed = AllowedNames<Enum>(),
           .fix = absl::StrCat("set ", field, " to ", first),
           .replacement = first}};
}

inline void Append(ConfigProblems more, ConfigProblems& problems) {
  problems.insert(problems.end(), std::make_move_iterator(more.begin()),
                  std::make_move_iterator(more.end()));
}

}  // namespace tessera::topology::internal

#endif  // TESSERA_TOPOLOGY_CONFIG_INTERNAL_CHECKS_H_
