// The parts of CheckMesh: the order of the axes, and the experts' axis.
#ifndef TESSERA_TOPOLOGY_CONFIG_INTERNAL_MESH_CHECKS_H_
#define TESSERA_TOPOLOGY_CONFIG_INTERNAL_MESH_CHECKS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/config/internal/checks.h"

namespace tessera::topology::internal {

struct NamedSize {
  std::string_view name;
  int64_t size;
};

// The axes that multiply to the world, in the order in which the default order
// has them.
inline std::array<NamedSize, 4> WorldAxes(const MeshShape& shape) {
  return {
      {{"tp", shape.tp}, {"cp", shape.cp}, {"dp", shape.dp}, {"pp", shape.pp}}};
}

// The names in the order: as they stand where there is nothing wrong, else as
// `problems`, which is added to, says to mend it.
std::vector<std::string> CheckOrder(const MeshShape& shape,
                                    ConfigProblems& problems);

// ep. The other sizes must be right. `order` has tp, cp, dp and pp.
ConfigProblems CheckExperts(const MeshShape& shape,
                            std::span<const std::string> order);

}  // namespace tessera::topology::internal

#endif  // TESSERA_TOPOLOGY_CONFIG_INTERNAL_MESH_CHECKS_H_
