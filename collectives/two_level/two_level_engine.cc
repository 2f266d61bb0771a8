#include "collectives/two_level/two_level_engine.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/two_level/failure_store.h"
#include "collectives/two_level/two_level_collectives.h"
#include "collectives/two_level/two_level_transport.h"

namespace tessera::collectives {
namespace {

class TwoLevelEngine : public Engine {
 public:
  TwoLevelEngine(HostMap map, std::unique_ptr<Engine> within,
                 std::unique_ptr<Engine> network,
                 std::shared_ptr<FailureStore> failures)
      : map_(std::move(map)),
        within_(std::move(within)),
        network_(std::move(network)),
        failures_(std::move(failures)),
        neighbours_(*within_->transport(), failures_.get(),
                    std::bind_front(&TwoLevelEngine::MayFollow, this)),
        messages_(*network_->transport(), failures_.get(),
                  [](const absl::Status&) { return true; }),
        transport_(map_, neighbours_, messages_),
        collectives_(map_, *within_, messages_) {}

  std::string_view name() const override { return "two_level"; }
  Rank rank() const override { return network_->rank(); }
  int64_t size() const override { return network_->size(); }
  bool Implements(OpKind kind) const override {
    return collectives_.Implements(kind);
  }
  bool FoldsInRankOrder(const Operation& operation) const override {
    return collectives_.FoldsInRankOrder(operation);
  }
  void Enter(OperationContext& context) override { within_->Enter(context); }
  void Leave(OperationContext& context) override { within_->Leave(context); }
  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    const absl::Status status = collectives_.Run(operation, context);
    const bool explains =
        failures_ != nullptr && !failures_->explained() && MayFollow(status);
    return explains ? failures_->Explain(status) : status;
  }
  Transport* transport() override { return &transport_; }
  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline) override;
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return within_->AllocateShared(bytes);
  }
  void Abort(const absl::Status& reason) override {
    if (failures_ != nullptr) failures_->Abort(reason);
    within_->Abort(reason);
    network_->Abort(reason);
  }
  std::vector<PeerReport> Peers() const override;

 private:
  bool MayFollow(const absl::Status& status) const;

  const HostMap map_;
  const std::unique_ptr<Engine> within_;
  const std::unique_ptr<Engine> network_;
  const std::shared_ptr<FailureStore> failures_;  // Null without a store.
  ExplainedTransport neighbours_;                 // Messages within the host.
  ExplainedTransport messages_;                   // Messages between hosts.
  TwoLevelTransport transport_;
  TwoLevelCollectives collectives_;
};

// True if a rank of this host is late because it waits for a message, possibly
// of another host.
bool TwoLevelEngine::MayFollow(const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status)) return false;
  const std::vector<PeerReport> peers = within_->Peers();
  return std::any_of(peers.begin(), peers.end(), [&](const PeerReport& peer) {
    return peer.rank != within_->rank() &&
           (peer.phase.phase() == Phase::kReceiving ||
            peer.phase.phase() == Phase::kSending);
  });
}

absl::StatusOr<std::unique_ptr<Engine>> TwoLevelEngine::CreateSubgroup(
    std::span<const Rank> members, uint32_t group, int64_t deadline) {
  HostMap map = map_.Restrict(members);
  std::vector<Rank> here;
  for (const Rank member : members) {
    if (map_.host_of(member) == map_.host_of(rank())) {
      here.push_back(Rank(map_.place_of(member)));
    }
  }
  if (map.hosts() == map.size()) {
    return network_->CreateSubgroup(members, group, deadline);
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> within,
                           within_->CreateSubgroup(here, group, deadline));
  if (map.hosts() == 1) return within;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> network,
                           network_->CreateSubgroup(members, group, deadline));
  return JoinEngines(
      std::move(map), std::move(within), std::move(network),
      failures_ == nullptr ? nullptr : failures_->Subgroup(members, group));
}

std::vector<PeerReport> TwoLevelEngine::Peers() const {
  std::vector<PeerReport> peers = network_->Peers();
  const std::vector<PeerReport> here = within_->Peers();
  for (const Rank rank : map_.ranks_of(map_.host_of(network_->rank()))) {
    PeerReport& peer = peers[static_cast<size_t>(rank.value())];
    peer = here[static_cast<size_t>(map_.place_of(rank))];
    peer.rank = rank;
  }
  return peers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> JoinEngines(
    HostMap map, std::unique_ptr<Engine> within,
    std::unique_ptr<Engine> network, std::shared_ptr<FailureStore> failures) {
  const Rank rank = network->rank();
  const auto here =
      static_cast<int64_t>(map.ranks_of(map.host_of(rank)).size());
  if (network->size() != map.size() || within->size() != here ||
      within->rank() != Rank(map.place_of(rank))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "two_level: engine ", network->name(), " has rank ", rank.value(),
        " of ", network->size(), ", engine ", within->name(), " rank ",
        within->rank().value(), " of ", within->size(), "; needed are ",
        map.size(), " ranks, of them ", here, " on the host"));
  }
  if (network->transport() == nullptr || within->transport() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "two_level: engine ",
        (network->transport() == nullptr ? network : within)->name(),
        " has no messages between ranks; use gloo or mpi between hosts"));
  }
  return std::make_unique<TwoLevelEngine>(std::move(map), std::move(within),
                                          std::move(network),
                                          std::move(failures));
}

absl::StatusOr<std::unique_ptr<Engine>> CreateTwoLevelEngine(
    Store& store, const TwoLevelOptions& options,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<Engine>>()>
        create_network) {
  const SharedMemoryOptions& memory = options.shared_memory;
  std::string host = options.host;
  if (host.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const HostId self, HostId::Self());
    host = absl::StrCat(HostName(), " ", self.ToString());
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> hosts,
      AllGather(store, absl::StrCat("two_level/", memory.name, "/hosts"), host,
                absl::Now() + memory.timeout));
  HostMap map(std::move(hosts));
  if (map.hosts() == map.size() && map.size() > 1) return create_network();
  SharedMemoryOptions within_options = memory;
  const std::span<const Rank> here = map.ranks_of(map.host_of(store.rank()));
  within_options.members.assign(here.begin(), here.end());
  absl::StrAppend(&within_options.name, "/host", map.host_of(store.rank()));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> within,
                           CreateSharedMemoryEngine(store, within_options));
  if (map.hosts() == 1) return within;
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> network, create_network());
  return JoinEngines(
      std::move(map), std::move(within), std::move(network),
      std::make_shared<FailureStore>(
          store, absl::StrCat("two_level/", memory.name, "/failure"),
          AllRanks(store.size())));
}

}  // namespace tessera::collectives
