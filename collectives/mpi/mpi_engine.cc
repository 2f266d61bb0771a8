#include "collectives/mpi/mpi_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/mpi/mpi_collective.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/mpi_transport.h"

namespace tessera::collectives {
namespace {

class MpiEngine : public Engine {
 public:
  explicit MpiEngine(std::shared_ptr<MpiGroup> group)
      : group_(std::move(group)), transport_(group_) {}

  std::string_view name() const override { return "mpi"; }
  Rank rank() const override { return Rank(group_->rank()); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }

  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return RunMpiCollective(*group_, operation, context);
  }

  Transport* transport() override { return &transport_; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(auto subgroup,
                             group_->Subgroup(members, group, deadline));
    return std::make_unique<MpiEngine>(std::move(subgroup));
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return AllocateOrdinary(bytes);
  }

  void Abort(const absl::Status& reason) override {
    group_->Abort(reason);
    transport_.CancelReceives();
  }

  std::vector<PeerReport> Peers() const override {
    return group_->peers().reports();
  }

 private:
  const std::shared_ptr<MpiGroup> group_;
  MpiTransport transport_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateMpiEngine(
    const MpiOptions& options) {
  if (options.largest_count < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mpi: largest_count is ", options.largest_count, "; use at least 1"));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mpi: timeout is ", absl::FormatDuration(options.timeout),
                     "; it must be more than 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(auto world, MpiGroup::World(options));
  return std::make_unique<MpiEngine>(std::move(world));
}

}  // namespace tessera::collectives
