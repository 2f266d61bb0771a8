// DirectTransport: Transport over channels in shared memory.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_TRANSPORT_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/engine/transport.h"
#include "collectives/host_memory/channel.h"
#include "collectives/host_memory/group.h"

namespace tessera::collectives::direct {

class DirectTransport : public Transport {
 public:
  explicit DirectTransport(Group& group);
  ~DirectTransport() override;

  Rank rank() const override { return Rank(group_.rank()); }
  int64_t size() const override { return group_.size(); }

  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;

 private:
  // Both ends between this rank and one peer on a lane; made at first use.
  struct Ends {
    Ends(Group& group, int64_t peer, Lane lane)
        : send(group, peer, lane), receive(group, peer, lane) {}
    SendEnd send;
    ReceiveEnd receive;
    // When Test last looked whether the peer lives.
    std::atomic<int64_t> last_look_ns = 0;
  };

  Ends& EndsOf(int64_t peer, Lane lane);
  absl::StatusOr<bool> IsComplete(const Request& request);
  absl::Status ProgressCollectives();
  absl::Status LookAtPeer(const Request& request, Ends& ends);

  Group& group_;
  std::vector<std::atomic<Ends*>> ends_;  // By peer, then lane.
  std::mutex create_mutex_;
  // The ends of the collective lane, whose requests help each other on.
  std::vector<Ends*> collective_ends_;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_TRANSPORT_H_
