// RankMeans: what a rank has, as the others must know it: all ranks wait and
// copy by the same rules.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_RANK_MEANS_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_RANK_MEANS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::collectives {

struct RankMeans {
  int64_t usable_processors = 1;        // At once, by mask and quota.
  std::vector<int> allowed_processors;  // Which they are.
  bool reads_peers = false;             // It may read its peers' memory.

  // A text that Parse reads back: "2 1 0,1". InvalidArgument where it is none.
  std::string ToString() const;
  static absl::StatusOr<RankMeans> Parse(std::string_view text);

  friend bool operator==(const RankMeans&, const RankMeans&) = default;
};

// How many processors the ranks of a host have together; at least 1. Bound to
// one each, they still have one each. A quota of one rank's cgroup is taken for
// everybody's.
int64_t ProcessorsTogether(std::span<const RankMeans> ranks);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_RANK_MEANS_H_
