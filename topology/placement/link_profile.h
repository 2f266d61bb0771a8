// LinkProfile: the links that the groups of one axis use, and the time of
// collectives over them.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_LINK_PROFILE_H_
#define TESSERA_TOPOLOGY_PLACEMENT_LINK_PROFILE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "topology/cluster/cluster.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {

// Groups of `size` ranks that lie `stride` apart. A block of size * stride
// consecutive ranks holds `stride` whole groups.
class AxisRanks {
 public:
  AxisRanks(int64_t size, int64_t stride) : size_(size), stride_(stride) {}

  int64_t size() const { return size_; }
  int64_t stride() const { return stride_; }
  int64_t block() const { return size_ * stride_; }

  int64_t Coordinate(int64_t rank) const { return rank / stride_ % size_; }
  bool IsLast(int64_t rank) const { return Coordinate(rank) == size_ - 1; }
  bool IsFirst(int64_t rank) const { return Coordinate(rank) == 0; }
  // The group's first rank.
  int64_t Base(int64_t rank) const { return rank - Coordinate(rank) * stride_; }
  // Neighbours on the group's ring.
  int64_t Next(int64_t rank) const {
    return IsLast(rank) ? Base(rank) : rank + stride_;
  }
  int64_t Previous(int64_t rank) const {
    return IsFirst(rank) ? rank + (size_ - 1) * stride_ : rank - stride_;
  }
  // How many ranks of this rank's group lie in [first, end).
  int64_t MembersIn(int64_t rank, int64_t first, int64_t end) const {
    const int64_t base = Base(rank);
    const int64_t low = std::max<int64_t>(CeilDivide(first - base), 0);
    const int64_t high = std::min(CeilDivide(end - base), size_);
    return std::max<int64_t>(high - low, 0);
  }

 private:
  // a divided by the stride, rounded up; 0 for negative a.
  int64_t CeilDivide(int64_t a) const {
    return a <= 0 ? 0 : (a - 1) / stride_ + 1;
  }

  int64_t size_;
  int64_t stride_;
};

// The time of a message of b bytes is latency + b * seconds_per_byte.
struct LinkCost {
  double latency = 0;
  double seconds_per_byte = 0;

  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

// The links that may be the slowest for some message size: those that no other
// link equals or exceeds in both latency and seconds per byte.
class SlowestLinks {
 public:
  void Add(LinkCost link);
  // Seconds of the slowest link for a message of `bytes`; 0 without links.
  double Seconds(double bytes) const;
  std::span<const LinkCost> links() const { return links_; }

 private:
  std::vector<LinkCost> links_;
};

// Example:
//
//   LinkProfile profile =
//       MeasureLinks(cluster, /*world_size=*/128, /*size=*/8, /*stride=*/1,
//                    LinkNeeds{});
//   TransferSeconds(transfer, profile);
//
// Rank r is on device r. A group of `size` ranks is base, base + stride, base +
// 2 * stride, ...; all groups of the axis communicate at the same time.
//
// Messages over the network share the cards of a host. If a host has cards of b
// bytes/s, B together, and f flows of the axis leave it, each flow gets at most
// B / f. In addition, a ring gets at most b for each member of its group on the
// host (NCCL runs one ring per card, each leaving from a different member), and
// a message to the next rank, or one rank's exchange with all others, gets at
// most b. Links within a host have the cluster's speed regardless of how many
// flows use them.
struct LinkProfile {
  int64_t size = 1;
  // The links from each rank to the next, and from the last to the first.
  SlowestLinks ring;
  // The ring without the link from the last rank.
  SlowestLinks chain;
  // All pairs: the highest latency, and the time in which the busiest rank or
  // host sends one byte to each peer.
  LinkCost exchange;
};

// The requested parts of a profile; the others stay empty.
struct LinkNeeds {
  bool ring = true;
  bool chain = true;
  bool exchange = true;
};

// Returns the profile of an axis. `size` * `stride` must divide `world_size`,
// which must not exceed the number of the cluster's devices (preconditions).
//
// Hosts at equivalent positions in their blocks of size * stride ranks have
// equal links, so only the first host of each kind is computed. Identical hosts
// with d devices (per NVLink rack, if it has several hosts) give O(d) kinds;
// each host group adds its own. This takes O(hosts) plus O(d) for each kind, or
// O(d * size) with `exchange`.
LinkProfile MeasureLinks(const Cluster& cluster, int64_t world_size,
                         int64_t size, int64_t stride, const LinkNeeds& needs);

// The same, computed from every host: the reference for tests.
LinkProfile MeasureAllLinks(const Cluster& cluster, int64_t world_size,
                            int64_t size, int64_t stride,
                            const LinkNeeds& needs);

// The seconds of one transfer with all its repetitions, by the alpha-beta
// model. 0 for a group of one rank.
//
// With n ranks in each group, m bytes, and for a link its latency a and its
// seconds per byte b (contention included):
//
//   collective      algorithm          seconds
//   all_gather      ring               (n-1) * max(a + m/n * b)
//   reduce_scatter  ring               (n-1) * max(a + m/n * b)
//   all_reduce      ring               2 (n-1) * max(a + m/n * b)
//   all_to_all      pairwise exchange  (n-1) * max a + m/n * max(sum of b)
//   send_recv       one message        max(a + m * b)
//
// where max is over all links of all groups, and the sum is over a rank's
// peers, or over the traffic that leaves a host: a step ends when its slowest
// link is done.
//
// Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 19(1), 2005 (ring all-gather,
// pairwise exchange); P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 69(2), 2009 (ring all-reduce);
// R. W. Hockney, Parallel Computing 20, 1994 (the model). The cost of the
// reduction itself is left out, as is overlap with computation.
double TransferSeconds(const Transfer& transfer, const LinkProfile& profile);

// The sum over transfers, which run one after another.
double TrafficSeconds(std::span<const Transfer> transfers,
                      const LinkProfile& profile);

// The parts of a profile that the formulas of the transfers use.
LinkNeeds NeedsOf(std::span<const Transfer> transfers);

// Bytes that one rank sends in one transfer, once: along each link to the next
// rank, or, for kAllToAll, to each peer.
double BytesPerLink(const Transfer& transfer, int64_t group_size);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_LINK_PROFILE_H_
