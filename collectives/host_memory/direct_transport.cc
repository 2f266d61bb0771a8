#include "collectives/host_memory/direct_transport.h"

#include "base/status_macros.h"

namespace tessera::collectives::direct {
namespace {

constexpr int64_t kLookEveryNs = 20'000'000;

}  // namespace

DirectTransport::DirectTransport(Group& group)
    : group_(group), ends_(static_cast<size_t>(group.size() * kLaneCount)) {}

DirectTransport::~DirectTransport() {
  for (std::atomic<Ends*>& ends : ends_) delete ends.load();
}

DirectTransport::Ends& DirectTransport::EndsOf(int64_t peer, Lane lane) {
  std::atomic<Ends*>& slot =
      ends_[static_cast<size_t>(peer * kLaneCount + static_cast<int>(lane))];
  Ends* ends = slot.load(std::memory_order_acquire);
  if (ends != nullptr) return *ends;
  const std::lock_guard lock(create_mutex_);
  ends = slot.load(std::memory_order_acquire);
  if (ends == nullptr) {
    ends = new Ends(group_, peer, lane);
    slot.store(ends, std::memory_order_release);
    if (lane == Lane::kCollective) collective_ends_.push_back(ends);
  }
  return *ends;
}

absl::StatusOr<Request> DirectTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  TESSERA_ASSIGN_OR_RETURN(
      const uint64_t number,
      EndsOf(to.value(), lane).send.Start(signature, bytes));
  return Request{number, to, lane, Direction::kSend};
}

absl::StatusOr<Request> DirectTransport::StartReceive(
    Rank from, Lane lane, const Signature& expected,
    std::span<std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  const uint64_t number =
      EndsOf(from.value(), lane).receive.Start(expected, bytes);
  return Request{number, from, lane, Direction::kReceive};
}

absl::StatusOr<bool> DirectTransport::IsComplete(const Request& request) {
  Ends& ends = EndsOf(request.peer.value(), request.lane);
  if (request.direction == Direction::kSend) {
    return ends.send.Progress() >= request.number;
  }
  TESSERA_ASSIGN_OR_RETURN(const uint64_t completed, ends.receive.Progress());
  return completed >= request.number;
}

absl::StatusOr<bool> DirectTransport::Test(const Request& request) {
  TESSERA_ASSIGN_OR_RETURN(const bool complete, IsComplete(request));
  if (complete) return true;
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  TESSERA_RETURN_IF_ERROR(
      LookAtPeer(request, EndsOf(request.peer.value(), request.lane)));
  return false;
}

// Now and then, whether the peer is still there.
absl::Status DirectTransport::LookAtPeer(const Request& request, Ends& ends) {
  const int64_t now = MonotonicNanos();
  if (now - ends.last_look_ns.load(std::memory_order_relaxed) < kLookEveryNs) {
    return absl::OkStatus();
  }
  ends.last_look_ns.store(now, std::memory_order_relaxed);
  const PeerReport peer =
      group_.Report(request.peer.value(), /*look_at_process=*/true);
  if (peer.state == PeerState::kAlive) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const bool complete, IsComplete(request));
  if (complete) return absl::OkStatus();
  const bool sends = request.direction == Direction::kSend;
  Scratch none;
  OperationContext context(sends ? ends.send.front() : ends.receive.front(), 0,
                           none);
  context.Enter(sends ? Phase::kSending : Phase::kReceiving, request.peer);
  return group_.Break(MissingPeersError(context, std::span(&peer, 1)));
}

absl::Status DirectTransport::ProgressCollectives() {
  for (Ends* ends : collective_ends_) {
    if (!ends->send.idle()) ends->send.Progress();
    if (!ends->receive.idle()) {
      TESSERA_RETURN_IF_ERROR(ends->receive.Progress().status());
    }
  }
  return absl::OkStatus();
}

absl::Status DirectTransport::Wait(std::span<const Request> requests,
                                   OperationContext& context) {
  absl::Status error;
  const bool collective =
      !requests.empty() && requests.front().lane == Lane::kCollective;
  const auto ready = [&] {
    bool all = true;
    for (const Request& request : requests) {
      const absl::StatusOr<bool> complete = IsComplete(request);
      if (!complete.ok()) error = complete.status();
      all = all && complete.ok() && *complete;
    }
    // What else was started may be what the others wait for.
    if (!all && collective) error.Update(ProgressCollectives());
    return all || !error.ok();
  };
  TESSERA_RETURN_IF_ERROR(
      group_.Await(context, ready, [&](std::vector<int64_t>& missing) {
        for (const Request& request : requests) {
          const absl::StatusOr<bool> complete = IsComplete(request);
          if (complete.ok() && *complete) continue;
          missing.push_back(request.peer.value());
        }
      }));
  return error;
}

}  // namespace tessera::collectives::direct
