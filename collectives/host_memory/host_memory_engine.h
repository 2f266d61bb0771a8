// HostMemoryEngine: the Engine of in_process and shared_memory, over a Domain.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_ENGINE_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/host_memory/domain.h"
#include "collectives/host_memory/group.h"
#include "collectives/host_memory/host_memory_collectives.h"
#include "collectives/host_memory/host_memory_transport.h"

namespace tessera::collectives::host_memory {

// InvalidArgument if a value is not allowed for a group of `ranks` ranks.
absl::Status ValidateTuning(const Tuning& tuning, int64_t ranks);

// Allocates and initialises a block for a group of `ranks` ranks.
absl::StatusOr<GroupBlock> CreateGroupBlock(Domain& domain, int64_t ranks,
                                            uint32_t group,
                                            const Tuning& tuning);

class HostMemoryEngine : public Engine {
 public:
  // The engine of this process's rank in the group of `block`. `members`: the
  // group's ranks as indices in the domain, in group order, this rank included.
  HostMemoryEngine(std::string name, std::shared_ptr<Domain> domain,
                   GroupBlock block, std::vector<int64_t> members,
                   bool owns_block);
  ~HostMemoryEngine() override;

  std::string_view name() const override { return name_; }
  Rank rank() const override { return Rank(group_->rank()); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }
  bool FoldsInRankOrder(const Operation&) const override { return true; }
  void Enter(OperationContext& context) override { group_->Enter(context); }
  void Leave(OperationContext&) override { group_->Leave(); }
  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return collectives_->Run(operation, context);
  }
  std::unique_ptr<OperationPlan> Plan(const Operation& operation,
                                      OperationContext& context) override {
    return collectives_->Plan(operation, context);
  }
  Transport* transport() override { return transport_.get(); }
  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline) override;
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override;
  void Abort(const absl::Status& reason) override {
    static_cast<void>(group_->Break(reason));
  }
  std::vector<PeerReport> Peers() const override;

 private:
  absl::Status Announce(const GroupBlock& block, uint64_t key, int64_t readers,
                        int64_t deadline);
  absl::StatusOr<GroupBlock> AwaitBlock(Rank first, uint64_t key, int64_t ranks,
                                        int64_t deadline);

  const std::string name_;
  const uint64_t generation_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<HostMemoryCollectives> collectives_;
  std::unique_ptr<HostMemoryTransport> transport_;
};

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_ENGINE_H_
