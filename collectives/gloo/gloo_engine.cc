#include "collectives/gloo/gloo_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/ordinary_memory.h"
#include "collectives/gloo/gloo_collective.h"
#include "collectives/gloo/gloo_group.h"
#include "collectives/gloo/gloo_transport.h"

namespace tessera::collectives {
namespace {

class GlooEngine : public Engine {
 public:
  explicit GlooEngine(std::shared_ptr<GlooGroup> group)
      : group_(std::move(group)), transport_(group_) {}

  std::string_view name() const override { return "gloo"; }
  Rank rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind kind) const override { return GlooImplements(kind); }

  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return RunGlooCollective(*group_, operation, context);
  }

  Transport* transport() override { return &transport_; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(auto subgroup,
                             group_->Subgroup(members, group, deadline));
    return std::make_unique<GlooEngine>(std::move(subgroup));
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return AllocateOrdinary(bytes);
  }

  void Abort(const absl::Status& reason) override {
    group_->Abort(reason);
    transport_.Abort(reason);
  }

  std::vector<PeerReport> Peers() const override {
    return group_->peers().reports();
  }

 private:
  const std::shared_ptr<GlooGroup> group_;
  GlooTransport transport_;
};

absl::Status Validate(const GlooOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gloo: a timeout of ", absl::FormatDuration(options.timeout),
        "; it must be more than 0"));
  }
  constexpr size_t kMaxNameBytes = 64;
  if (options.name.empty() || options.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("gloo: a name of ", options.name.size(), " bytes; 1 to ",
                     kMaxNameBytes, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateGlooEngine(
    Store& store, const GlooOptions& options) {
  TESSERA_RETURN_IF_ERROR(Validate(options));
  const int64_t deadline =
      MonotonicNanos() + absl::ToInt64Nanoseconds(options.timeout);
  TESSERA_ASSIGN_OR_RETURN(auto device, CreateGlooDevice(options));
  std::vector<Rank> members;
  for (int64_t r = 0; r < store.size(); ++r) members.push_back(Rank(r));
  TESSERA_ASSIGN_OR_RETURN(
      auto group, GlooGroup::Connect(store, std::move(members), options.name,
                                     std::move(device), options, deadline));
  return std::make_unique<GlooEngine>(std::move(group));
}

}  // namespace tessera::collectives
