// A rank's device, the queue on which it computes, its operations, and the
// communicator for its tensors.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device,
//                            RankDevice::Create(settings, world));
//   options.state.ops = device->state_ops();
//   TrainRank::Create(device->world(), options, samples, device->ops());
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RANK_DEVICE_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RANK_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/os/thread_pool.h"
#include "collectives/communicator.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/train/settings/settings.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

// The kernels and collectives of a kind of device.
struct DeviceKernels {
  std::function<absl::StatusOr<std::unique_ptr<tensor_parallel::Ops>>(Queue&)>
      ops;
  std::function<absl::StatusOr<std::shared_ptr<zero3::StateOps>>(Queue&)>
      state_ops;
  // Makes the communicator for tensors from a communicator of the host.
  std::function<absl::StatusOr<std::unique_ptr<collectives::Communicator>>(
      std::unique_ptr<collectives::Communicator>, Device&)>
      communicator;
};

struct RankDeviceOptions {
  // The rank's number on its machine, which selects its GPU. If unset, its rank
  // in the world.
  std::optional<int64_t> local_rank = {};
  // Device memory that is allocated at the start; more is allocated if it does
  // not suffice (base/device/arena.h). 0: every request is an allocation.
  int64_t memory_bytes = 0;
};

class RankDevice {
 public:
  // Creates the device from --device (empty: cpu), --device_seed, --threads and
  // --deterministic. Emulated devices have a different order on every rank. On
  // GPUs, ranks that are threads of a process share the device object of their
  // GPU and use the engine cuda; processes use nccl. `world`, whose buffers are
  // host memory, must outlive this. A collective of the world. If ranks have
  // different kinds of devices (by default, because some machines have no
  // GPUs), returns FailedPrecondition on all ranks with the ranks of each kind.
  static absl::StatusOr<std::unique_ptr<RankDevice>> Create(
      const Settings& settings, collectives::Communicator& world,
      const RankDeviceOptions& options = {});
  // Uses a given device with the operations of the CPU: the processor, or a
  // device whose work the host can execute (Queue::Launch).
  static absl::StatusOr<std::unique_ptr<RankDevice>> CreateOn(
      std::shared_ptr<Device> device, collectives::Communicator& world,
      int threads = 1);
  static absl::StatusOr<std::unique_ptr<RankDevice>> CreateWith(
      const DeviceKernels& kernels, std::shared_ptr<Device> device,
      collectives::Communicator& world,
      std::shared_ptr<ThreadPool> pool = nullptr);

  Device& device() { return *device_; }
  Queue& queue() { return *queue_; }
  tensor_parallel::Ops& ops() { return *ops_; }
  // The rank's threads for operations and optimizer steps on the CPU. Null if
  // CreateWith received no pool.
  const std::shared_ptr<ThreadPool>& pool() const { return pool_; }
  // The value for ShardedStateOptions::ops; null for the default.
  std::shared_ptr<zero3::StateOps> state_ops() const { return state_ops_; }
  // The world for tensors. On the processor, the `world` given to Create.
  collectives::Communicator& world() { return *world_; }

 private:
  RankDevice() = default;

  // Members refer to earlier ones.
  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<tensor_parallel::Ops> ops_;
  std::shared_ptr<zero3::StateOps> state_ops_;
  std::unique_ptr<collectives::Communicator> own_world_;
  collectives::Communicator* world_ = nullptr;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RANK_DEVICE_H_
