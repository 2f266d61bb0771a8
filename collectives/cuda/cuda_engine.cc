#include "collectives/cuda/cuda_engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/groups/agreement.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {
namespace {

// A number that differs between processes. The pid is included because a forked
// child has the random number of its parent.
int64_t ProcessToken() {
  static const uint64_t token = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return static_cast<int64_t>(token + static_cast<uint64_t>(getpid()));
}

// A group that rank 0 passes to the other ranks.
struct Handover {
  std::shared_ptr<DeviceGroup> group;
  std::atomic<int64_t> receivers;
};

class CudaEngine final : public Engine {
 public:
  CudaEngine(std::shared_ptr<DeviceGroup> group, int64_t rank, Device& device)
      : group_(std::move(group)), rank_(rank), device_(device) {}
  ~CudaEngine() override { group_->Leave(rank_); }

  std::string_view name() const override { return "cuda"; }
  Rank rank() const override { return Rank(rank_); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind) const override { return true; }
  bool FoldsInRankOrder(const Operation&) const override { return true; }
  absl::Status Run(const Operation&, OperationContext&) override {
    return absl::UnimplementedError("engine cuda only enqueues operations");
  }
  Transport* transport() override { return nullptr; }

  bool enqueues() const override { return true; }
  absl::StatusOr<Event> Enqueue(const Operation& operation,
                                const EnqueueCall& call) override {
    return group_->Enqueue(rank_, operation, call);
  }
  void OnError(std::function<void(const absl::Status&)> on_error) override {
    group_->OnError(rank_, std::move(on_error));
  }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceGroup> subgroup,
                             group_->Subgroup(rank_, members, group, deadline));
    const auto at = std::find(members.begin(), members.end(), rank());
    return std::make_unique<CudaEngine>(std::move(subgroup),
                                        at - members.begin(), device_);
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return AllocateSharedFrom(device_.memory(), bytes);
  }

  void Abort(const absl::Status& reason) override { group_->Fail(reason); }
  std::vector<PeerReport> Peers() const override { return group_->Peers(); }

 private:
  const std::shared_ptr<DeviceGroup> group_;
  const int64_t rank_;
  Device& device_;
};

// Returns rank 0's group on every rank.
absl::StatusOr<std::shared_ptr<DeviceGroup>> ShareGroup(
    Communicator& host, const CollectiveKernels& kernels) {
  int64_t address = 0;
  if (host.rank() == Rank(0)) {
    auto* const created = new Handover{
        std::make_shared<DeviceGroup>(host.size(), kernels), host.size()};
    address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(created));
  }
  TESSERA_RETURN_IF_ERROR(
      host.Broadcast(Buffer(std::span(&address, 1)), Rank(0)));
  auto* const handover =
      reinterpret_cast<Handover*>(static_cast<uintptr_t>(address));
  std::shared_ptr<DeviceGroup> group = handover->group;
  if (handover->receivers.fetch_sub(1) == 1) delete handover;
  return group;
}

// Returns the values of all ranks, by rank.
absl::StatusOr<std::vector<int64_t>> GatherFromAll(Communicator& host,
                                                   int64_t value) {
  std::vector<int64_t> all(static_cast<size_t>(host.size()));
  TESSERA_RETURN_IF_ERROR(
      host.AllGather(ConstBuffer(std::span<const int64_t>(&value, 1)),
                     Buffer(std::span(all))));
  return all;
}

absl::Status CheckRanks(Communicator& host) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                           GatherFromAll(host, ProcessToken()));
  for (size_t r = 1; r < tokens.size(); ++r) {
    if (tokens[r] == tokens[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "cuda: ranks 0 and ", r, " of ", host.name(),
        " are different processes; the engine needs ranks that are threads of "
        "one process. Use the nccl engine, or start the ranks as threads"));
  }
  if (host.size() <= kMostDeviceRanks) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cuda: ", host.name(), " has ", host.size(),
                   " ranks; the engine supports at most ", kMostDeviceRanks));
}

absl::Status ConnectAll(Communicator& host, Device& device,
                        DeviceConnector connect) {
  const auto own = static_cast<int64_t>(reinterpret_cast<uintptr_t>(&device));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> addresses,
                           GatherFromAll(host, own));
  std::vector<Device*> devices;
  for (const int64_t address : addresses) {
    devices.push_back(
        reinterpret_cast<Device*>(static_cast<uintptr_t>(address)));
  }
  return connect(device, devices);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateDeviceEngine(
    Communicator& host, Device& device, const CollectiveKernels& kernels,
    DeviceConnector connect) {
  TESSERA_RETURN_IF_ERROR(CheckRanks(host));
  absl::Status status = ConnectAll(host, device, connect);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceGroup> group,
                           ShareGroup(host, kernels));
  const int64_t rank = host.rank().value();
  if (status.ok()) status = group->Join(rank, device);
  // No rank continues before all have joined.
  TESSERA_RETURN_IF_ERROR(AgreeOnStatus(host, status, host.options().timeout));
  return std::make_unique<CudaEngine>(std::move(group), rank, device);
}

}  // namespace tessera::collectives
