// TwoLevelCollectives: collectives that use shared memory within each host and
// messages between hosts.
//
// Messages of at most kSmallBytes (all_to_all: kSmallExchangeBytes) from all
// ranks together: the ranks of a host gather theirs, the leaders (first ranks)
// of the hosts exchange what was gathered, and the leader distributes the
// result.
//
// Longer ones, with S bytes in all on H hosts of n ranks each:
//
//   all_reduce      The hosts form a chain. Partial sums go forward, from
//                   leader to leader; results go backward. Each link carries S
//                   bytes in both directions, in pieces, so that all links and
//                   memories work at the same time. Sums fold the inputs in
//                   rank order.
//   all_gather      Each rank sends its block to one rank of each other host,
//                   which passes it to its neighbours: S / H bytes leave and
//                   S (H - 1) / H reach a host.
//   reduce_scatter  The reverse, with one partial sum per host; in rank order
//                   by the chain.
//   broadcast       A chain of hosts.
//   all_to_all      Blocks for other hosts go directly to their ranks, while
//                   those of this host move through its memory.
#ifndef TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_COLLECTIVES_H_
#define TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/operation.h"
#include "collectives/two_level/host_map.h"

namespace tessera::collectives {

class TwoLevelCollectives {
 public:
  static constexpr int64_t kSmallBytes = 32 << 10;
  // For all_to_all, whose longer form has a message for each pair of ranks.
  static constexpr int64_t kSmallExchangeBytes = 4 << 20;
  static constexpr int64_t kPieceBytes = 256 << 10;

  // `within` has the ranks of this rank's host in the order of the map,
  // `network` has all ranks. The arguments must outlive this.
  TwoLevelCollectives(const HostMap& map, Engine& within, Transport& network)
      : map_(map), within_(within), network_(network) {}

  // All kinds but barrier and broadcast need a map that is in order.
  bool Implements(OpKind kind) const;
  bool FoldsInRankOrder(const Operation& operation) const;

  // As Engine::Run.
  absl::Status Run(const Operation& operation, OperationContext& context);

 private:
  const HostMap& map_;
  Engine& within_;
  Transport& network_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_COLLECTIVES_H_
