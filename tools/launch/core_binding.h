// CoresForRanks: which CPUs each rank of this host may run on.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto cpus, CoresForRanks(4));
//   cpus[1];   // {1, 9}: both hardware threads of the second core
#ifndef TESSERA_TOOLS_LAUNCH_CORE_BINDING_H_
#define TESSERA_TOOLS_LAUNCH_CORE_BINDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tessera::tools {

// The CPUs of one core: those of `cpus` with the same `core_of`, in the order
// of the first of each.
std::vector<std::vector<int>> GroupByCore(
    const std::vector<int>& cpus,
    absl::FunctionRef<std::string(int cpu)> core_of);

// For each of `count` ranks the CPUs of a core of its own, of those that this
// process may use, in ascending order. OutOfRange where there are fewer cores.
absl::StatusOr<std::vector<std::vector<int>>> CoresForRanks(int64_t count);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_CORE_BINDING_H_
