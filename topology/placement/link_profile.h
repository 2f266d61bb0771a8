// LinkProfile: the links that the groups of one axis use, when their ranks lie
// a stride apart.
//
//   LinkProfile profile =
//       MeasureLinks(cluster, /*world_size=*/128, /*size=*/8, /*stride=*/1,
//                    LinkNeeds{});
//   TransferSeconds(transfer, profile);
//
// Rank r is on device r. A group of `size` ranks is base, base + stride, base +
// 2 * stride, ...; all groups of the axis communicate at the same time.
//
// What crosses the network is slowed by what else leaves or enters the host. A
// host with cards of b bytes/s and B together, out of which f flows of the axis
// lead, gives each B / f. Moreover a ring gets at most b for each member that
// its group has on the host (NCCL runs one ring a card, each leaving by another
// member); a message to the next rank, and one rank's exchange with all, b.
// Links within a host are as fast as the cluster says, however many use them.
#ifndef TESSERA_TOPOLOGY_PLACEMENT_LINK_PROFILE_H_
#define TESSERA_TOPOLOGY_PLACEMENT_LINK_PROFILE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "topology/cluster/cluster.h"

namespace tessera::topology {

// The time of a message of b bytes is latency + b * seconds_per_byte.
struct LinkCost {
  double latency = 0;
  double seconds_per_byte = 0;

  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

// The links of which the slowest decides, whatever the message's size: those
// that no other one equals or exceeds in both latency and seconds per byte.
class SlowestLinks {
 public:
  void Add(LinkCost link);
  // Seconds that the slowest takes for so many bytes; 0 where there is none.
  double Seconds(double bytes) const;
  std::span<const LinkCost> links() const { return links_; }

 private:
  std::vector<LinkCost> links_;
};

struct LinkProfile {
  int64_t size = 1;
  // From each rank to the next, the last one's next being the first.
  SlowestLinks ring;
  // The same without the last one's.
  SlowestLinks chain;
  // All pairs: the highest latency, and the time that the busiest rank or host
  // takes to send one byte to each peer.
  LinkCost exchange;
};

// Which parts of a profile are wanted; the others stay empty.
struct LinkNeeds {
  bool ring = true;
  bool chain = true;
  bool exchange = true;
};

// The profile. `size` * `stride` divides `world_size`, and that is at most the
// number of the cluster's devices; anything else is the caller's mistake, and
// ends the program.
//
// Hosts that lie alike in their groups' blocks of size * stride ranks have like
// links, and only the first of each kind is looked at. With alike hosts of d
// devices (those of an NVLink rack, where that is more than a host) there are
// O(d) kinds; host groups of their own add theirs. So this takes O(hosts) plus
// O(d) for each kind, or O(d * size) with `exchange`.
LinkProfile MeasureLinks(const Cluster& cluster, int64_t world_size,
                         int64_t size, int64_t stride, const LinkNeeds& needs);

// The same, always looking at every host: the reference that tests compare.
LinkProfile MeasureAllLinks(const Cluster& cluster, int64_t world_size,
                            int64_t size, int64_t stride,
                            const LinkNeeds& needs);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_PLACEMENT_LINK_PROFILE_H_
