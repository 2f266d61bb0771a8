#include "collectives/counting/counting_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"

namespace tessera::collectives {
namespace {

class CountedShared final : public SharedMemory {
 public:
  CountedShared(tessera::Buffer memory, std::shared_ptr<MessageCounts> counts,
                size_t group)
      : memory_(std::move(memory)),
        bytes_(memory_.bytes()),
        counts_(std::move(counts)),
        group_(group) {
    counts_->AddShared(group_, static_cast<int64_t>(memory_.size()));
  }
  ~CountedShared() override {
    counts_->AddShared(group_, -static_cast<int64_t>(memory_.size()));
  }
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  tessera::Buffer memory_;
  const std::span<std::byte> bytes_;
  const std::shared_ptr<MessageCounts> counts_;
  const size_t group_;
};

// Counts messages; each message completes when it starts.
class CountingTransport final : public Transport {
 public:
  CountingTransport(Rank rank, int64_t size, size_t group,
                    std::shared_ptr<MessageCounts> counts)
      : rank_(rank), size_(size), group_(group), counts_(std::move(counts)) {}

  Rank rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::StatusOr<Request> StartSend(Rank to, Lane lane, const Signature&,
                                    std::span<const std::byte> bytes) override {
    return Count(to, lane, Direction::kSend, bytes.size());
  }
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane, const Signature&,
                                       std::span<std::byte> bytes) override {
    return Count(from, lane, Direction::kReceive, bytes.size());
  }
  absl::StatusOr<bool> Test(const Request&) override { return true; }
  absl::Status Wait(std::span<const Request>, OperationContext&) override {
    return absl::OkStatus();
  }

 private:
  // The messages of an algorithm are counted with its operation.
  Request Count(Rank peer, Lane lane, Direction direction, size_t bytes) {
    if (lane == Lane::kPointToPoint) {
      counts_->AddOperation(
          group_,
          direction == Direction::kSend ? OpKind::kSend : OpKind::kReceive,
          static_cast<int64_t>(bytes));
    }
    return {.number = ++number_,
            .peer = peer,
            .lane = lane,
            .direction = direction};
  }

  const Rank rank_;
  const int64_t size_;
  const size_t group_;
  const std::shared_ptr<MessageCounts> counts_;
  std::atomic<uint64_t> number_ = 0;
};

class CountingEngine final : public Engine {
 public:
  // `members` are ranks of the world; `world.rank` and `world.ranks` are this
  // rank's number in the group and the size of the group.
  CountingEngine(const CountingWorld& world, std::vector<Rank> members,
                 std::optional<size_t> parent)
      : world_(world),
        members_(members),
        group_(world.counts->AddGroup(std::move(members), parent)),
        transport_(world.rank, world.ranks, group_, world.counts) {}

  std::string_view name() const override { return "counting"; }
  Rank rank() const override { return world_.rank; }
  int64_t size() const override { return world_.ranks; }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }
  bool FoldsInRankOrder() const override { return true; }
  bool TakesNoTime() const override { return true; }

  void Enter(OperationContext& context) override {
    const Signature& call = context.signature();
    // Run counts the operations that this engine executes itself, because their
    // signature has `count` 0 if ranks may pass different counts.
    if (call.algorithm == Algorithm::kEngine) return;
    world_.counts->AddOperation(group_, call.kind,
                                call.count * SizeInBytes(call.dtype));
  }

  absl::Status Run(const Operation& operation, OperationContext&) override {
    world_.counts->AddOperation(
        group_, operation.kind,
        MessageCount(operation, size()) * SizeInBytes(DTypeOf(operation)));
    if (!world_.memory->Owns(operation.input.data) &&
        !world_.memory->Owns(operation.output.data)) {
      AnswerAlike(operation);
    }
    return absl::OkStatus();
  }

  Transport* transport() override { return &transport_; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t, int64_t) override {
    CountingWorld world = world_;
    world.ranks = static_cast<int64_t>(members.size());
    std::vector<Rank> in_world;
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank()) world.rank = Rank(static_cast<int64_t>(i));
      in_world.push_back(members_[static_cast<size_t>(members[i].value())]);
    }
    return std::make_unique<CountingEngine>(world, std::move(in_world), group_);
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    if (bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shared memory of ", bytes, " bytes; at least 0"));
    }
    TESSERA_ASSIGN_OR_RETURN(
        tessera::Buffer memory,
        tessera::Buffer::Allocate(world_.memory, static_cast<size_t>(bytes)));
    return std::make_unique<CountedShared>(std::move(memory), world_.counts,
                                           group_);
  }

  void Abort(const absl::Status&) override {}

  std::vector<PeerReport> Peers() const override {
    std::vector<PeerReport> peers(static_cast<size_t>(size()));
    for (size_t r = 0; r < peers.size(); ++r) {
      peers[r].rank = Rank(static_cast<int64_t>(r));
    }
    return peers;
  }

 private:
  // The result if every rank passes this rank's input.
  void AnswerAlike(const Operation& operation) const {
    switch (operation.kind) {
      case OpKind::kAllGather:
      case OpKind::kGather:
        Repeat(operation);
        break;
      case OpKind::kReduceScatter:
      case OpKind::kScatter:
      case OpKind::kAllToAll:
        TakeOwnBlock(operation);
        break;
      case OpKind::kAllReduce:
      case OpKind::kReduce:
        CopyBytes(operation.input.AsBytes(), operation.output.AsBytes());
        break;
      case OpKind::kBroadcast:
        if (operation.root == rank()) {
          CopyBytes(operation.input.AsBytes(), operation.output.AsBytes());
        }
        break;
      default:
        break;
    }
  }

  static void CopyBytes(std::span<const std::byte> from,
                        std::span<std::byte> to) {
    const size_t bytes = std::min(from.size(), to.size());
    if (bytes == 0 || from.data() == to.data()) return;
    std::memmove(to.data(), from.data(), bytes);
  }

  // Copies this rank's block to the block of every rank.
  void Repeat(const Operation& operation) const {
    if (operation.output.count == 0) return;
    const Blocks blocks = OutputBlocks(operation, size());
    const int64_t width = SizeInBytes(operation.output.dtype);
    const std::span<const std::byte> own = operation.input.AsBytes();
    for (int64_t r = 0; r < size(); ++r) {
      CopyBytes(own, operation.output.AsBytes().subspan(
                         static_cast<size_t>(blocks.offset(r) * width),
                         static_cast<size_t>(blocks.count(r) * width)));
    }
  }

  void TakeOwnBlock(const Operation& operation) const {
    if (operation.kind == OpKind::kAllToAll) {
      CopyBytes(operation.input.AsBytes(), operation.output.AsBytes());
      return;
    }
    if (operation.input.count == 0) return;
    const Blocks blocks = InputBlocks(operation, size());
    const int64_t width = SizeInBytes(operation.input.dtype);
    CopyBytes(operation.input.AsBytes().subspan(
                  static_cast<size_t>(blocks.offset(rank().value()) * width),
                  static_cast<size_t>(blocks.count(rank().value()) * width)),
              operation.output.AsBytes());
  }

  const CountingWorld world_;
  const std::vector<Rank> members_;
  const size_t group_;
  CountingTransport transport_;
};

}  // namespace

std::vector<MessageCounts::Group> MessageCounts::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

size_t MessageCounts::last_group() const {
  const std::lock_guard lock(mutex_);
  return last_group_;
}

void MessageCounts::ResetOperations() {
  const std::lock_guard lock(mutex_);
  for (Group& group : groups_) group.operations.clear();
}

size_t MessageCounts::AddGroup(std::vector<Rank> members,
                               std::optional<size_t> parent) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({.members = std::move(members), .parent = parent});
  return groups_.size() - 1;
}

void MessageCounts::AddOperation(size_t group, OpKind kind, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  last_group_ = group;
  OperationCount& count = groups_[group].operations[kind];
  ++count.count;
  count.bytes += bytes;
  count.largest = std::max(count.largest, bytes);
}

void MessageCounts::AddShared(size_t group, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Group& of = groups_[group];
  of.shared_bytes += bytes;
  of.shared_peak = std::max(of.shared_peak, of.shared_bytes);
}

absl::StatusOr<std::unique_ptr<Engine>> CreateCountingEngine(
    const CountingWorld& world) {
  if (world.rank.value() < 0 || world.rank.value() >= world.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", world.rank.value(), " of a world of ",
                     world.ranks, "; allowed: 0 to ranks - 1"));
  }
  if (world.memory == nullptr || world.counts == nullptr) {
    return absl::InvalidArgumentError(
        "a counting world needs memory and counts to report to");
  }
  std::vector<Rank> members;
  for (int64_t r = 0; r < world.ranks; ++r) members.emplace_back(r);
  return std::make_unique<CountingEngine>(world, std::move(members),
                                          std::nullopt);
}

}  // namespace tessera::collectives
