// MpiGroup: a duplicated MPI communicator with deadlines and aborts. Also Poll,
// on which its waits are built.
#ifndef TESSERA_COLLECTIVES_MPI_MPI_GROUP_H_
#define TESSERA_COLLECTIVES_MPI_MPI_GROUP_H_

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/library_engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/mpi/mpi_types.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Polls MPI until all requests are complete. Calls `stop` occasionally, but not
// in the first iterations; its error ends the wait. Every poll progresses all
// of MPI's messages, so requests are polled one after the other.
template <typename Stop>
absl::Status Poll(std::span<MPI_Request> requests, MPI_Status* statuses,
                  bool may_spin, const Stop& stop) {
  Backoff backoff(may_spin);
  for (size_t i = 0; i < requests.size();) {
    int done = 0;
    const int code =
        MPI_Test(&requests[i], &done,
                 statuses == nullptr ? MPI_STATUS_IGNORE : statuses + i);
    if (code != MPI_SUCCESS) return MpiStatus(code, "MPI_Test");
    if (done != 0) {
      ++i;
      continue;
    }
    if (backoff.Pause() == Backoff::Stage::kSpinning) continue;
    absl::Status stopped = stop();
    if (!stopped.ok()) return stopped;
  }
  return absl::OkStatus();
}

// The tags of a group's messages.
inline constexpr int kPayloadTag = 0;  // Plus the lane.
inline constexpr int kHeaderTag = 2;   // Plus the lane.
inline constexpr int kBlockTag = 4;    // Blocks exchanged by collectives.
inline constexpr int kAbortTag = 5;
inline constexpr int kFirstSubgroupTag = 16;

// One rank's MPI communicator, its waits and its error state. Thread-safe.
class MpiGroup {
 public:
  // Creates a group on a duplicate of the options' communicator.
  static absl::StatusOr<std::shared_ptr<MpiGroup>> World(
      const MpiOptions& options);

  // Like Engine::CreateSubgroup.
  absl::StatusOr<std::shared_ptr<MpiGroup>> Subgroup(
      std::span<const topology::Rank> members, uint32_t group,
      int64_t deadline);

  // Frees the communicator unless the group is broken, because MPI may still
  // use it then.
  ~MpiGroup();

  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const MpiTypes& types() const { return *types_; }
  const MpiOptions& options() const { return options_; }
  const PeerTable& peers() const { return peers_; }

  // True if every rank of this host has its own processor.
  bool may_spin() const { return may_spin_; }

  // Polls until all requests are complete. Errors as Transport::Wait;
  // DeadlineExceeded names all other ranks. Fills `statuses` if it is not
  // empty. Completed requests become MPI_REQUEST_NULL.
  absl::Status Await(std::span<MPI_Request> requests, OperationContext& context,
                     MPI_Status* statuses = nullptr);

  // OK, or the error that broke the group: Abort on this rank, or an error
  // reported by a peer.
  absl::Status CheckAlive();

  // Breaks the group on this rank and notifies the others, which detect it in
  // their next wait.
  void Abort(const absl::Status& reason);

  bool failed() const { return failure_.failed(); }

  // Working memory of the running collective. Leaked after an error, because
  // MPI may still use it.
  absl::StatusOr<std::span<std::byte>> AllocateScratch(int64_t bytes) {
    return scratch_->Allocate(bytes);
  }
  void ResetScratch() { scratch_->Reset(); }
  void MarkBroken() { broken_ = true; }

 private:
  MpiGroup(MPI_Comm comm, const MpiOptions& options,
           std::shared_ptr<const MpiTypes> types);

  absl::Status ExchangePeers(int64_t deadline);
  void SetPeers(PeerTable peers);
  absl::Status Meet(std::span<const topology::Rank> members, uint32_t group,
                    int tag, int64_t deadline);
  int SubgroupTag(uint32_t group) const;
  void HearAbort();

  const MPI_Comm comm_;
  const MpiOptions options_;
  const std::shared_ptr<const MpiTypes> types_;
  int rank_ = 0;
  int size_ = 0;
  bool may_spin_ = false;
  PeerTable peers_;
  Failure failure_;
  std::atomic<bool> broken_ = false;
  const std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();

  std::mutex probe_mutex_;
  std::atomic<int64_t> next_probe_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_MPI_GROUP_H_
