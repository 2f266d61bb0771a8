// NcclLane: an NCCL communicator and the queue of its calls.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_LANE_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_LANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/engine/peer_table.h"
#include "collectives/nccl/nccl_api.h"

namespace tessera::collectives {

// Thread-safe, except that one thread at a time calls Connect or Call.
class NcclLane {
 public:
  NcclLane(const NcclApi& api, Device& device, const Failure& failure)
      : api_(api), device_(device), failure_(failure) {}
  // Requires that its calls are done or that Abort was called.
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  // Waits for the other ranks until `deadline` (MonotonicNanos).
  absl::Status Connect(const NcclUniqueId& id, int rank, int ranks,
                       int most_blocks, std::string_view queue_name,
                       int64_t deadline);

  // Calls `enqueue` to put NCCL calls on the queue's stream as one NCCL group.
  // Waits until NCCL has accepted them, at most until `deadline`. Returns the
  // error of the group if it is broken.
  using Calls = std::function<NcclResult(NcclComm comm, NcclStream stream)>;
  absl::Status Call(std::string_view name, const Calls& calls,
                    int64_t deadline);

  // Ends running calls and rejects later ones.
  void Abort();

  // The first error that NCCL has detected.
  absl::Status Health();

  // Calls `use` with the communicator, unless it was aborted.
  void With(const std::function<void(NcclComm)>& use);

  Queue& queue() const { return *queue_; }
  // Numbers messages from 1.
  uint64_t NextNumber() { return ++number_; }

 private:
  absl::Status Await(NcclResult result, std::string_view name,
                     int64_t deadline);
  absl::Status StatusOf(NcclResult result, std::string_view name);
  absl::Status Broken() const;

  const NcclApi& api_;
  Device& device_;
  const Failure& failure_;
  std::unique_ptr<Queue> queue_;
  uint64_t number_ = 0;
  std::mutex mutex_;  // Orders NCCL's functions on the communicator.
  NcclComm comm_ = nullptr;
  bool aborted_ = false;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_LANE_H_
