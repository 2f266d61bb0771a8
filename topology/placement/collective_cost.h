// How long a collective takes, by the alpha-beta model.
//
// With n ranks in each group, m bytes, and for a link its latency a and its
// seconds per byte b (contention included, see link_profile.h):
//
//   collective      algorithm          seconds
//   all_gather      ring               (n-1) * max(a + m/n * b)
//   reduce_scatter  ring               (n-1) * max(a + m/n * b)
//   all_reduce      ring               2 (n-1) * max(a + m/n * b)
//   all_to_all      pairwise exchange  (n-1) * max a + m/n * max(sum of b)
//   send_recv       one message        max(a + m * b)
//
// where max is over all links of all groups, and the sum over a rank's peers,
// or over what leaves a host: a step ends when its slowest link is done.
//
// Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 19(1), 2005 (ring all-gather,
// pairwise exchange); P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 69(2), 2009 (ring all-reduce);
// R. W. Hockney, Parallel Computing 20, 1994 (the model). The cost of the
// reduction itself is left out, as is overlap with computation.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_COLLECTIVE_COST_H_
#define TESSERA_TOPOLOGY_PLACEMENT_COLLECTIVE_COST_H_

#include <span>

#include "topology/placement/link_profile.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {

// Seconds for all the times of one transfer. 0 for a group of one.
double TransferSeconds(const Transfer& transfer, const LinkProfile& profile);

// The sum over transfers, which come one after another.
double TrafficSeconds(std::span<const Transfer> transfers,
                      const LinkProfile& profile);

// The parts of a profile that the transfers' formulas use.
LinkNeeds NeedsOf(std::span<const Transfer> transfers);

// Bytes that one rank sends in one transfer, once: along each link to the next
// rank, or, for kAllToAll, to each peer.
double BytesPerLink(const Transfer& transfer, int64_t group_size);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_COLLECTIVE_COST_H_
