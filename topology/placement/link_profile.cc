#include "topology/placement/link_profile.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "absl/container/flat_hash_set.h"

namespace tessera::topology {

namespace {

bool AtLeast(const LinkCost& a, const LinkCost& b) {
  return a.latency >= b.latency && a.seconds_per_byte >= b.seconds_per_byte;
}

// Adds up the links of one host after another.
class Measurement {
 public:
  Measurement(const Cluster& cluster, int64_t world_size, AxisRanks ranks,
              const LinkNeeds& needs)
      : cluster_(cluster), world_(world_size), ranks_(ranks), needs_(needs) {
    profile_.size = ranks.size();
  }

  void AddHost(HostIndex host) {
    first_ = cluster_.FirstDevice(host)->value();
    end_ = std::min(first_ + *cluster_.DeviceCount(host), world_);
    place_ = Locate(first_);
    bandwidth_ = *cluster_.NetworkBandwidth(host);
    if (needs_.ring) AddRing();
    if (needs_.chain) AddChain();
    if (needs_.exchange) AddExchange();
  }

  // Adds the hosts of ranks [first, end).
  void AddHostsOf(int64_t first, int64_t end) {
    for (int64_t rank = first; rank < end; rank = end_) {
      AddHost(*cluster_.HostOf(DeviceIndex(rank)));
    }
  }

  const LinkProfile& profile() const { return profile_; }

 private:
  // The end of an edge that lies on the host. Both ends are considered, because
  // the slower of the two hosts decides.
  enum class End { kSource, kTarget };

  DevicePlace Locate(int64_t rank) const {
    return *cluster_.Locate(DeviceIndex(rank));
  }
  // The link from a rank of the current host.
  Link LinkTo(int64_t rank, int64_t other) const {
    DevicePlace here = place_;
    here.local = rank - first_;
    return cluster_.LinkBetween(here, Locate(other));
  }
  int64_t Neighbour(int64_t rank, End end) const {
    return end == End::kSource ? ranks_.Next(rank) : ranks_.Previous(rank);
  }
  // Returns true if the edge that leaves or enters here closes the ring.
  bool ClosesRing(int64_t rank, End end) const {
    return end == End::kSource ? ranks_.IsLast(rank) : ranks_.IsFirst(rank);
  }

  void AddRing() {
    for (End end : {End::kSource, End::kTarget}) {
      AddEdges(end, /*closed=*/true, profile_.ring);
    }
  }
  void AddChain() {
    for (End end : {End::kSource, End::kTarget}) {
      AddEdges(end, /*closed=*/false, profile_.chain);
    }
  }

  void AddEdges(End end, bool closed, SlowestLinks& slowest) {
    if (ranks_.size() == 1) return;
    int64_t flows = 0;
    crossings_.clear();
    for (int64_t rank = first_; rank < end_; ++rank) {
      if (!closed && ClosesRing(rank, end)) continue;
      const Link link = LinkTo(rank, Neighbour(rank, end));
      if (link.level != LinkLevel::kNetwork) {
        slowest.Add({link.speed.latency, 1 / link.speed.bandwidth});
        continue;
      }
      ++flows;
      // A ring uses as many cards as its group has members here.
      const int64_t cards = closed ? ranks_.MembersIn(rank, first_, end_) : 1;
      crossings_.push_back(
          {link.speed.latency,
           1 / (link.speed.bandwidth * static_cast<double>(cards))});
    }
    const double shared = static_cast<double>(flows) / bandwidth_;
    for (LinkCost crossing : crossings_) {
      crossing.seconds_per_byte = std::max(crossing.seconds_per_byte, shared);
      slowest.Add(crossing);
    }
  }

  void AddExchange() {
    if (ranks_.size() == 1) return;
    LinkCost& worst = profile_.exchange;
    int64_t leaving = 0;
    for (int64_t rank = first_; rank < end_; ++rank) {
      // Summed by level, so that equal counts give the same sum in any order.
      std::array<double, kLinkLevels> busy = {};
      for (int64_t i = 0; i < ranks_.size(); ++i) {
        const int64_t peer = ranks_.Base(rank) + i * ranks_.stride();
        if (peer == rank) continue;
        const Link link = LinkTo(rank, peer);
        busy[static_cast<size_t>(link.level)] += 1 / link.speed.bandwidth;
        worst.latency = std::max(worst.latency, link.speed.latency);
        leaving += link.level == LinkLevel::kNetwork ? 1 : 0;
      }
      worst.seconds_per_byte =
          std::max(worst.seconds_per_byte,
                   std::accumulate(busy.begin(), busy.end(), 0.0));
    }
    worst.seconds_per_byte = std::max(
        worst.seconds_per_byte, static_cast<double>(leaving) / bandwidth_);
  }

  const Cluster& cluster_;
  const int64_t world_;
  const AxisRanks ranks_;
  const LinkNeeds needs_;
  LinkProfile profile_;
  // The current host: its ranks, and the total bandwidth of its cards.
  int64_t first_ = 0;
  int64_t end_ = 0;
  DevicePlace place_;  // Location of its first rank.
  double bandwidth_ = 1;
  std::vector<LinkCost> crossings_;
};

// Recognises stretches of ranks whose links equal those of an earlier stretch.
// A stretch is the ranks of one host, or of the hosts that share NVLink
// domains.
//
// A block of size * stride ranks has three parts: ranks without a predecessor
// in their group, ranks between two others, and ranks without a successor. Two
// stretches of one host group are equivalent if either
//   - both lie within the same part, and all their next ranks lie in the same
//     host group, as do all their previous ranks, or
//   - they begin at the same position in their blocks, and these blocks lie
//     within the host group.
class Kinds {
 public:
  Kinds(const Cluster& cluster, int64_t world_size, AxisRanks ranks,
        bool exchange)
      : world_(world_size), ranks_(ranks), exchange_(exchange) {
    int64_t end = 0;
    for (const HostGroup& group : cluster.groups()) {
      end += group.count * static_cast<int64_t>(group.devices.size());
      ends_.push_back(end);
    }
  }

  // Returns true if ranks [first, end) of this host group may differ from all
  // earlier queries. A range that the end of the world truncates always may.
  bool IsNew(int64_t group, int64_t first, int64_t end) {
    if (end > world_) return true;
    const int64_t phase = first % ranks_.block();
    const int64_t part = PartOf(phase, phase + end - first);
    Kind kind = {group, part, group, group};
    if (part == kNoPart || exchange_) {
      const int64_t blocks_end =
          (end + ranks_.block() - 1) / ranks_.block() * ranks_.block();
      if (GroupOf(first - phase, blocks_end) != group) return true;
      if (part == kNoPart) kind[1] = kNoPart + phase;
    } else {
      const int64_t step = ranks_.stride();
      const int64_t wrap = ranks_.block() - step;
      const int64_t next = part == kLast ? -wrap : step;
      const int64_t previous = part == kFirst ? wrap : -step;
      kind[2] = GroupOf(first + next, end + next);
      kind[3] = GroupOf(first + previous, end + previous);
      if (kind[2] == kSeveral || kind[3] == kSeveral) return true;
    }
    return seen_.insert(kind).second;
  }

 private:
  // Host group; part, or kNoPart and the position in the block; the host groups
  // of the next and the previous ranks.
  using Kind = std::array<int64_t, 4>;

  static constexpr int64_t kFirst = 0;
  static constexpr int64_t kMiddle = 1;
  static constexpr int64_t kLast = 2;
  static constexpr int64_t kNoPart = 3;
  static constexpr int64_t kSeveral = -1;

  // The part that contains positions [begin, end) of a block, if one does.
  int64_t PartOf(int64_t begin, int64_t end) const {
    const int64_t first_end = ranks_.stride();
    const int64_t last_begin = ranks_.block() - ranks_.stride();
    if (end <= first_end) return kFirst;
    if (begin >= first_end && end <= last_begin) return kMiddle;
    if (begin >= last_begin && end <= ranks_.block()) return kLast;
    return kNoPart;
  }

  // The host group that contains ranks [first, end), if one does.
  int64_t GroupOf(int64_t first, int64_t end) const {
    const auto found = std::upper_bound(ends_.begin(), ends_.end(), first);
    return found != ends_.end() && end <= *found ? found - ends_.begin()
                                                 : kSeveral;
  }

  const int64_t world_;
  const AxisRanks ranks_;
  const bool exchange_;
  std::vector<int64_t> ends_;  // Ends of host groups, in ranks.
  absl::flat_hash_set<Kind> seen_;
};

}  // namespace

void SlowestLinks::Add(LinkCost link) {
  for (const LinkCost& other : links_) {
    if (AtLeast(other, link)) return;
  }
  std::erase_if(links_,
                [&](const LinkCost& other) { return AtLeast(link, other); });
  links_.push_back(link);
}

double SlowestLinks::Seconds(double bytes) const {
  double slowest = 0;
  for (const LinkCost& link : links_) {
    slowest = std::max(slowest, link.latency + bytes * link.seconds_per_byte);
  }
  return slowest;
}

LinkProfile MeasureLinks(const Cluster& cluster, int64_t world_size,
                         int64_t size, int64_t stride, const LinkNeeds& needs) {
  const AxisRanks ranks(size, stride);
  Measurement measurement(cluster, world_size, ranks, needs);
  if (size == 1) return measurement.profile();
  Kinds kinds(cluster, world_size, ranks, needs.exchange);
  int64_t first = 0;
  for (size_t group = 0; group < cluster.groups().size(); ++group) {
    const HostGroup& hosts = cluster.groups()[group];
    const int64_t length =
        static_cast<int64_t>(hosts.devices.size()) * hosts.nvlink_hosts;
    const int64_t end = first + length * (hosts.count / hosts.nvlink_hosts);
    for (; first < std::min(end, world_size); first += length) {
      if (kinds.IsNew(static_cast<int64_t>(group), first, first + length)) {
        measurement.AddHostsOf(first, std::min(first + length, world_size));
      }
    }
    first = end;
  }
  return measurement.profile();
}

LinkProfile MeasureAllLinks(const Cluster& cluster, int64_t world_size,
                            int64_t size, int64_t stride,
                            const LinkNeeds& needs) {
  Measurement measurement(cluster, world_size, AxisRanks(size, stride), needs);
  measurement.AddHostsOf(0, world_size);
  return measurement.profile();
}

namespace {

// Steps of the ring algorithm.
double RingSteps(CollectiveKind kind, int64_t size) {
  const int rounds = kind == CollectiveKind::kAllReduce ? 2 : 1;
  return rounds * static_cast<double>(size - 1);
}

}  // namespace

double TransferSeconds(const Transfer& transfer, const LinkProfile& profile) {
  if (profile.size == 1) return 0;
  const auto size = static_cast<double>(profile.size);
  const double part = transfer.bytes / size;
  double once = 0;
  switch (transfer.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      once =
          RingSteps(transfer.kind, profile.size) * profile.ring.Seconds(part);
      break;
    case CollectiveKind::kAllToAll:
      once = (size - 1) * profile.exchange.latency +
             part * profile.exchange.seconds_per_byte;
      break;
    case CollectiveKind::kSendRecv:
      once = profile.chain.Seconds(transfer.bytes);
      break;
  }
  return once * transfer.times;
}

double TrafficSeconds(std::span<const Transfer> transfers,
                      const LinkProfile& profile) {
  double seconds = 0;
  for (const Transfer& transfer : transfers) {
    seconds += TransferSeconds(transfer, profile);
  }
  return seconds;
}

LinkNeeds NeedsOf(std::span<const Transfer> transfers) {
  LinkNeeds needs = {.ring = false, .chain = false, .exchange = false};
  for (const Transfer& transfer : transfers) {
    if (transfer.kind == CollectiveKind::kAllToAll) {
      needs.exchange = true;
    } else if (transfer.kind == CollectiveKind::kSendRecv) {
      needs.chain = true;
    } else {
      needs.ring = true;
    }
  }
  return needs;
}

double BytesPerLink(const Transfer& transfer, int64_t group_size) {
  if (group_size == 1) return 0;
  const double part = transfer.bytes / static_cast<double>(group_size);
  switch (transfer.kind) {
    case CollectiveKind::kAllToAll:
      return part;
    case CollectiveKind::kSendRecv:
      return transfer.bytes;
    default:
      return RingSteps(transfer.kind, group_size) * part;
  }
}

}  // namespace tessera::topology
