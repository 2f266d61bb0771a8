// TwoLevelTransport: sends the messages between ranks of one host through its
// memory, and all others over a network.
#ifndef TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_TRANSPORT_H_
#define TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_TRANSPORT_H_

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/transport.h"
#include "collectives/two_level/host_map.h"

namespace tessera::collectives {

class TwoLevelTransport : public Transport {
 public:
  // `within` has the ranks of this rank's host, `network` has all ranks. The
  // arguments must outlive this.
  TwoLevelTransport(const HostMap& map, Transport& within, Transport& network)
      : map_(map), within_(within), network_(network) {}

  Rank rank() const override { return network_.rank(); }
  int64_t size() const override { return network_.size(); }

  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;
  bool CanPeek() const override {
    return within_.CanPeek() && network_.CanPeek();
  }
  absl::StatusOr<std::optional<Signature>> Peek(Rank from, Lane lane) override {
    return TransportOf(from).Peek(PeerOf(from), lane);
  }
  absl::Status WaitUntil(OperationContext& context,
                         absl::FunctionRef<bool()> ready,
                         absl::FunctionRef<void(std::vector<int64_t>&)> missing,
                         const Request* only) override;

 private:
  // The messages of the collective lane that one transport may still be moving.
  using InFlight = std::vector<Request>;

  bool IsWithin(Rank peer) const {
    return map_.host_of(peer) == map_.host_of(rank());
  }
  Rank PeerOf(Rank peer) const {
    return IsWithin(peer) ? Rank(map_.place_of(peer)) : peer;
  }
  Transport& TransportOf(Rank peer) const {
    return IsWithin(peer) ? within_ : network_;
  }
  // The request as its transport knows it.
  Request Inner(Request request) const {
    request.peer = PeerOf(request.peer);
    return request;
  }
  void Remember(const Request& request);
  absl::Status Progress(InFlight& in_flight);
  absl::Status Poll(std::span<const Request> requests,
                    OperationContext& context);
  absl::Status WaitFor(std::span<const Request> requests, bool within,
                       OperationContext& context);

  const HostMap& map_;
  Transport& within_;
  Transport& network_;
  // Used by the thread that runs collectives.
  InFlight within_in_flight_;
  InFlight network_in_flight_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_TRANSPORT_H_
