#include "collectives/counting/counting_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {
namespace {

class CountedShared final : public SharedMemory {
 public:
  explicit CountedShared(tessera::Buffer memory)
      : memory_(std::move(memory)), bytes_(memory_.bytes()) {}
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  tessera::Buffer memory_;
  const std::span<std::byte> bytes_;
};

// Each message completes when it starts.
class CountingTransport final : public Transport {
 public:
  CountingTransport(Rank rank, int64_t size) : rank_(rank), size_(size) {}

  Rank rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  absl::StatusOr<Request> StartSend(Rank to, Lane lane, const Signature&,
                                    std::span<const std::byte>) override {
    return Start(to, lane, Direction::kSend);
  }
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane, const Signature&,
                                       std::span<std::byte>) override {
    return Start(from, lane, Direction::kReceive);
  }
  absl::StatusOr<bool> Test(const Request&) override { return true; }
  absl::Status Wait(std::span<const Request>, OperationContext&) override {
    return absl::OkStatus();
  }

 private:
  Request Start(Rank peer, Lane lane, Direction direction) {
    return {.number = ++number_,
            .peer = peer,
            .lane = lane,
            .direction = direction};
  }

  const Rank rank_;
  const int64_t size_;
  std::atomic<uint64_t> number_ = 0;
};

class CountingEngine final : public Engine {
 public:
  // `world.rank` and `world.ranks` are this rank's number in the group and the
  // size of the group.
  explicit CountingEngine(const CountingWorld& world)
      : world_(world), transport_(world.rank, world.ranks) {}

  std::string_view name() const override { return "counting"; }
  Rank rank() const override { return world_.rank; }
  int64_t size() const override { return world_.ranks; }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }
  bool FoldsInRankOrder(const Operation&) const override { return true; }
  bool TakesNoTime() const override { return true; }

  absl::Status Run(const Operation& operation, OperationContext&) override {
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
    world.rank = Rank(std::find(members.begin(), members.end(), rank()) -
                      members.begin());
    return std::make_unique<CountingEngine>(world);
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
    return std::make_unique<CountedShared>(std::move(memory));
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
  CountingTransport transport_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateCountingEngine(
    const CountingWorld& world) {
  if (world.rank.value() < 0 || world.rank.value() >= world.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", world.rank.value(), " of a world of ",
                     world.ranks, "; allowed: 0 to ranks - 1"));
  }
  if (world.memory == nullptr) {
    return absl::InvalidArgumentError("a counting world needs memory");
  }
  return std::make_unique<CountingEngine>(world);
}

}  // namespace tessera::collectives
