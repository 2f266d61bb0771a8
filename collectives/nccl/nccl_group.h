// NcclGroup: one rank's NCCL communicator with deadlines.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_GROUP_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_GROUP_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "collectives/nccl/nccl_engine.h"

namespace tessera::collectives {

// Owned device memory.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Grows to at least `bytes` bytes; the contents are lost if it grows.
  absl::StatusOr<void*> Reserve(size_t bytes);

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Not thread-safe except for Abort and const functions.
class NcclGroup {
 public:
  // Connects `members` (ranks of the job including this one) through the store.
  // `id` is unique in the job.
  static absl::StatusOr<std::shared_ptr<NcclGroup>> Connect(
      Store& store, std::vector<Rank> members, const std::string& id,
      const NcclOptions& options, int64_t deadline);

  // Like Engine::CreateSubgroup.
  absl::StatusOr<std::shared_ptr<NcclGroup>> Subgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline);

  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Rank rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }
  const NcclOptions& options() const { return options_; }
  const PeerTable& peers() const { return peers_; }
  const Failure& failure() const { return failure_; }
  DeviceMemory& scratch() { return scratch_; }
  DeviceMemory& control() { return control_; }

  // Calls `enqueue` to put NCCL calls on the stream as one NCCL group, and
  // waits until the stream has executed them. Errors as Transport::Wait. Any
  // error tears down the communicator, which ends its kernels, so the buffers
  // may be reused.
  absl::Status Run(const char* call, OperationContext& context,
                   const std::function<ncclResult_t()>& enqueue);

  // The same for CUDA work without NCCL calls.
  absl::Status AwaitStream(const char* call, OperationContext& context);

  // The waiting thread tears the communicator down.
  void Abort(const absl::Status& reason) { failure_.Set(reason); }

 private:
  NcclGroup(Store& store, std::vector<Rank> members, std::string id,
            const NcclOptions& options);

  absl::Status Prepare();
  absl::Status Meet(int64_t deadline, ncclUniqueId& unique);
  absl::Status Initialise(const ncclUniqueId& unique, int64_t deadline);
  // Waits until NCCL has accepted its calls. `late` creates the error for a
  // passed deadline.
  absl::Status AwaitComm(ncclResult_t result, const char* call,
                         int64_t deadline,
                         const std::function<absl::Status()>& late);
  absl::Status AwaitEvent(const char* call, OperationContext& context);
  void TearDown();

  Store& store_;
  const std::vector<Rank> members_;  // Ranks of the job.
  const std::string id_;
  NcclOptions options_;
  Rank rank_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  PeerTable peers_;
  Failure failure_;
  DeviceMemory scratch_;
  DeviceMemory control_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_GROUP_H_
