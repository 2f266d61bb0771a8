#include "collectives/two_level/two_level_transport.h"

#include <algorithm>

#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"

namespace tessera::collectives {

absl::StatusOr<Request> TwoLevelTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      Request request,
      TransportOf(to).StartSend(PeerOf(to), lane, signature, bytes));
  request.peer = to;
  Remember(request);
  return request;
}

absl::StatusOr<Request> TwoLevelTransport::StartReceive(
    Rank from, Lane lane, const Signature& expected,
    std::span<std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      Request request,
      TransportOf(from).StartReceive(PeerOf(from), lane, expected, bytes));
  request.peer = from;
  Remember(request);
  return request;
}

absl::StatusOr<bool> TwoLevelTransport::Test(const Request& request) {
  return TransportOf(request.peer).Test(Inner(request));
}

void TwoLevelTransport::Remember(const Request& request) {
  if (request.lane != Lane::kCollective) return;
  if (IsWithin(request.peer)) {
    within_in_flight_.push_back(request);
  } else if (!network_.ProgressesAlone()) {
    network_in_flight_.push_back(request);
  }
}

// Moves messages and forgets those that are complete.
absl::Status TwoLevelTransport::Progress(InFlight& in_flight) {
  absl::Status status;
  std::erase_if(in_flight, [&](const Request& request) {
    const absl::StatusOr<bool> complete = Test(request);
    status.Update(complete.status());
    return complete.ok() && *complete;
  });
  return status;
}

// Waits for those of `requests` that are within the host, or for the others.
absl::Status TwoLevelTransport::WaitFor(std::span<const Request> requests,
                                        bool within,
                                        OperationContext& context) {
  std::vector<Request> inner;
  for (const Request& request : requests) {
    if (IsWithin(request.peer) == within) inner.push_back(Inner(request));
  }
  if (inner.empty()) return absl::OkStatus();
  return (within ? within_ : network_).Wait(inner, context);
}

// Tests all messages in flight until `requests` are complete or the deadline.
absl::Status TwoLevelTransport::Poll(std::span<const Request> requests,
                                     OperationContext& context) {
  Backoff backoff(/*may_spin=*/false);
  std::vector<Request> left(requests.begin(), requests.end());
  while (!context.Expired()) {
    TESSERA_RETURN_IF_ERROR(Progress(within_in_flight_));
    TESSERA_RETURN_IF_ERROR(Progress(network_in_flight_));
    TESSERA_RETURN_IF_ERROR(Progress(left));
    if (left.empty()) break;
    backoff.Pause();
  }
  return absl::OkStatus();
}

// A transport that waits moves only its own messages, but a peer may wait for a
// message of the other transport before it sends what is awaited here.
absl::Status TwoLevelTransport::Wait(std::span<const Request> requests,
                                     OperationContext& context) {
  const bool collective =
      !requests.empty() && requests.front().lane == Lane::kCollective;
  if (collective && !network_in_flight_.empty()) {
    TESSERA_RETURN_IF_ERROR(Poll(requests, context));
  }
  TESSERA_RETURN_IF_ERROR(WaitFor(requests, /*within=*/true, context));
  if (collective) {
    TESSERA_RETURN_IF_ERROR(Progress(within_in_flight_));
    const bool waits = std::any_of(
        requests.begin(), requests.end(),
        [this](const Request& request) { return !IsWithin(request.peer); });
    if (waits && !within_in_flight_.empty()) {
      TESSERA_RETURN_IF_ERROR(Poll(requests, context));
    }
  }
  return WaitFor(requests, /*within=*/false, context);
}

// Ranks of this host are awaited in its memory, as long as some are missing. A
// receive from any rank then looks at the network at least every 10 ms.
absl::Status TwoLevelTransport::WaitUntil(
    OperationContext& context, absl::FunctionRef<bool()> ready,
    absl::FunctionRef<void(std::vector<int64_t>&)> missing,
    const Request* only) {
  const auto missing_here = [&](std::vector<int64_t>& places) {
    std::vector<int64_t> ranks;
    missing(ranks);
    for (const int64_t rank : ranks) {
      if (IsWithin(Rank(rank))) places.push_back(PeerOf(Rank(rank)).value());
    }
  };
  std::vector<int64_t> here;
  missing_here(here);
  if (!here.empty()) {
    TESSERA_RETURN_IF_ERROR(within_.WaitUntil(
        context, [&] { return ready() || context.Expired(); }, missing_here));
  }
  const bool awaits_network = only != nullptr && !IsWithin(only->peer);
  return network_.WaitUntil(context, ready, missing,
                            awaits_network ? only : nullptr);
}

}  // namespace tessera::collectives
