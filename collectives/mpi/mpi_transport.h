// MpiTransport: the Transport over MPI_Isend and MPI_Irecv.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_TRANSPORT_H_
#define TESSERA_COLLECTIVES_MPI_MPI_TRANSPORT_H_

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/engine/transport.h"
#include "collectives/mpi/mpi_group.h"

namespace tessera::collectives {

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiGroup> group);
  ~MpiTransport() override;

  Rank rank() const override { return Rank(group_->rank()); }
  int64_t size() const override { return group_->size(); }
  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;

  // Cancels the receives in flight of a broken group. MPI cannot cancel a
  // receive that has started.
  void CancelReceives();

 private:
  struct Message;
  struct Channel;

  Channel& ChannelOf(Rank peer, Lane lane, Direction direction);
  absl::StatusOr<Request> Start(Rank peer, Lane lane, Direction direction,
                                const Signature& signature, void* data,
                                int64_t bytes);
  absl::Status Post(const Channel& channel, void* data, Message& message);
  absl::Status Progress(Channel& channel);
  absl::StatusOr<bool> ProgressMessage(const Channel& channel,
                                       Message& message);
  absl::Status CheckArrived(const Channel& channel, const Message& message,
                            const MPI_Status& status);

  const std::shared_ptr<MpiGroup> group_;
  std::mutex channels_mutex_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_TRANSPORT_H_
