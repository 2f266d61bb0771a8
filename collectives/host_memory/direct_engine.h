// DirectEngine: Engine over a Domain.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_ENGINE_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/engine/engine.h"
#include "collectives/host_memory/direct_collectives.h"
#include "collectives/host_memory/direct_transport.h"
#include "collectives/host_memory/domain.h"
#include "collectives/host_memory/group.h"

namespace tessera::collectives::direct {

// InvalidArgument where a value cannot be for a group of so many ranks.
absl::Status ValidateTuning(const Tuning& tuning, int64_t ranks);

// A new block for a group of `ranks`, in memory of the domain.
absl::StatusOr<GroupBlock> CreateGroupBlock(Domain& domain, int64_t ranks,
                                            uint32_t group,
                                            const Tuning& tuning);

class DirectEngine : public Engine {
 public:
  // The seat of `domain`'s rank in the group of `block`. `members`: the ranks
  // of the domain in the group's order, this one among them.
  DirectEngine(std::string name, std::shared_ptr<Domain> domain,
               GroupBlock block, std::vector<int64_t> members, bool owns_block);
  ~DirectEngine() override;

  std::string_view name() const override { return name_; }
  Rank rank() const override { return Rank(group_->rank()); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }
  bool FoldsInRankOrder() const override { return true; }
  void Enter(OperationContext& context) override { group_->Enter(context); }
  void Leave(OperationContext&) override { group_->Leave(); }
  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return collectives_->Run(operation, context);
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
  std::unique_ptr<DirectCollectives> collectives_;
  std::unique_ptr<DirectTransport> transport_;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_DIRECT_ENGINE_H_
