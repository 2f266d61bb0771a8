#include "topology/placement/collective_cost.h"

namespace tessera::topology {
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
