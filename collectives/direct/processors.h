// How many processors this process may use at once.
#ifndef TESSERA_COLLECTIVES_DIRECT_PROCESSORS_H_
#define TESSERA_COLLECTIVES_DIRECT_PROCESSORS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::collectives::direct {

// The processors of the affinity mask, or fewer where the cgroup's quota is
// less; at least 1.
int64_t AvailableProcessors();

// The quota of a cgroup v2 `cpu.max` ("200000 100000" is 2), rounded up; 0
// where there is none ("max 100000") or the text is something else.
int64_t ParseCpuMax(std::string_view text);

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_DIRECT_PROCESSORS_H_
