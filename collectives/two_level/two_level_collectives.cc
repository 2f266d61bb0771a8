#include "collectives/two_level/two_level_collectives.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/engine/peer_report.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kSmallBytes = TwoLevelCollectives::kSmallBytes;
constexpr int64_t kPieceBytes = TwoLevelCollectives::kPieceBytes;

// The reduction of partial results; scaling and division are apart.
Reduction PartialOf(const Reduction& reduction) {
  return reduction.op == ReduceOp::kAverage ||
                 reduction.op == ReduceOp::kScaledSum
             ? Reduction::Sum()
             : reduction;
}

void CopyUnlessSame(Buffer to, ConstBuffer from) {
  if (to.data != from.data) CopyBytes(to.data, from.data, from.bytes());
}

// One running collective.
class Task {
 public:
  Task(const HostMap& map, Engine& within, Transport& network,
       const Operation& operation, OperationContext& context)
      : map_(map),
        within_(within),
        network_(network),
        operation_(operation),
        context_(context),
        me_(network.rank()),
        host_(map.host_of(me_)) {}

  absl::Status Barrier();
  absl::Status Broadcast();
  absl::Status AllReduce();
  absl::Status AllGather();
  absl::Status ReduceScatter();
  absl::Status AllToAll();

 private:
  bool IsLeader() const { return map_.place_of(me_) == 0; }
  int64_t hosts() const { return map_.hosts(); }
  std::span<const Rank> neighbours() const { return map_.ranks_of(host_); }
  int64_t RanksHere() const {
    return static_cast<int64_t>(neighbours().size());
  }
  // The host after this one in a ring, `distance` further.
  int64_t HostAt(int64_t distance) const {
    return (host_ + distance) % hosts();
  }

  // The elements of all ranks of a host, which are consecutive.
  template <typename AnyBuffer>
  AnyBuffer RegionOf(AnyBuffer all, const Blocks& blocks, int64_t host) const {
    const int64_t first = map_.leader_of(host).value();
    const auto ranks = static_cast<int64_t>(map_.ranks_of(host).size());
    const int64_t begin = blocks.offset(first);
    return all.Slice(begin, blocks.offset(first + ranks) - begin);
  }
  std::vector<int64_t> CountsHere(const Blocks& blocks) const {
    std::vector<int64_t> counts;
    for (const Rank rank : neighbours()) {
      counts.push_back(blocks.count(rank.value()));
    }
    return counts;
  }

  absl::StatusOr<Buffer> Scratch(int64_t count, DType dtype) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::span<std::byte> memory,
        context_.AllocateScratch(count * SizeInBytes(dtype)));
    return Buffer(memory.data(), count, dtype);
  }
  // The input, or a scaled copy if the reduction scales.
  absl::StatusOr<ConstBuffer> ScaledInput();

  // Collectives of the ranks of this host.
  std::vector<PeerReport> MissingNeighbours() const;
  absl::Status Within(const Operation& operation);
  absl::Status BroadcastWithin(Buffer data, int64_t root = 0) {
    if (RanksHere() == 1) return absl::OkStatus();
    return Within(BroadcastOf(data, data, Rank(root)));
  }
  absl::Status ReduceWithin(ConstBuffer input, Buffer output, int64_t root) {
    return Within(
        ReduceOf(input, output, PartialOf(operation_.reduction), Rank(root)));
  }

  // Messages between hosts. The task waits for all sends at its end.
  absl::Status Send(Rank to, std::span<const std::byte> bytes);
  absl::StatusOr<Request> Receive(Rank from, std::span<std::byte> bytes) {
    return network_.StartReceive(from, Lane::kCollective, context_.signature(),
                                 bytes);
  }
  absl::Status Await(const Request& request) {
    context_.Enter(request.direction == Direction::kSend ? Phase::kSending
                                                         : Phase::kReceiving,
                   request.peer);
    return network_.Wait({&request, 1}, context_);
  }
  absl::Status AwaitAll(std::span<const Request> requests) {
    for (const Request& request : requests) {
      TESSERA_RETURN_IF_ERROR(Await(request));
    }
    return absl::OkStatus();
  }
  absl::Status AwaitSends();

  // Exchanges messages with the leaders of all other hosts: for each host what
  // is sent, and the memory for what is received. Called by leaders.
  absl::Status ExchangeLeaders(
      absl::FunctionRef<std::span<const std::byte>(int64_t)> sent_to,
      absl::FunctionRef<std::span<std::byte>(int64_t)> received_from);
  // Collects the blocks of all ranks at the leaders. Every rank gives `all`.
  absl::Status Collect(ConstBuffer own, const Blocks& blocks, Buffer all);

  absl::Status AllReduceSmall();
  absl::Status ReduceScatterSmall(const Blocks& blocks);
  absl::StatusOr<std::vector<Request>> ReceivePartials(
      Buffer output, std::vector<Buffer>& partials);
  absl::Status AllToAllSmall();
  absl::Status ExchangeBlocks(ConstBuffer inputs, Buffer outputs);
  absl::Status AllReduceByChain(ConstBuffer input, Buffer output);

  // Calls `visit` with the pieces of the blocks of the ranks on other hosts, in
  // the same order on all ranks of this host.
  struct Piece {
    Rank rank;                     // The owner of the block.
    int64_t keeper = 0;            // The rank of this host that exchanges it.
    int64_t first = 0, count = 0;  // Elements of the whole message.
  };
  absl::Status ForEachPiece(
      const Blocks& blocks, DType dtype,
      absl::FunctionRef<absl::Status(const Piece&)> visit);
  // The rank of another host that exchanges the block of this rank.
  Rank KeeperOn(int64_t host) const {
    const std::span<const Rank> ranks = map_.ranks_of(host);
    return ranks[static_cast<size_t>(map_.place_of(me_)) % ranks.size()];
  }

  friend class Chain;

  const HostMap& map_;
  Engine& within_;
  Transport& network_;
  const Operation& operation_;
  OperationContext& context_;
  const Rank me_;
  const int64_t host_;
  std::deque<Request> sends_;
};

// The ranks of this host that are gone, or have not entered the operation, by
// their numbers in the group.
std::vector<PeerReport> Task::MissingNeighbours() const {
  std::vector<PeerReport> missing;
  for (PeerReport& peer : within_.Peers()) {
    const bool is_gone =
        peer.state == PeerState::kDead || peer.state == PeerState::kDeparted;
    if (!is_gone && peer.sequence >= context_.signature().sequence) continue;
    peer.rank = neighbours()[static_cast<size_t>(peer.rank.value())];
    peer.phase = PhaseWord(peer.phase.phase(), PhaseWord::kNoPeer);
    missing.push_back(std::move(peer));
  }
  return missing;
}

absl::Status Task::Within(const Operation& operation) {
  const absl::Status status = within_.Run(operation, context_);
  if (status.ok()) return status;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    // Another rank's reason begins with the name of the group.
    if (!absl::StartsWith(status.message(),
                          DescribeSignature(context_.signature()))) {
      return status;
    }
    const std::vector<PeerReport> missing = MissingNeighbours();
    if (!missing.empty()) {
      context_.Enter(context_.phase().phase());
      return MissingPeersError(context_, missing);
    }
  }
  const std::string ranks = absl::StrJoin(
      neighbours(), ", ",
      [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); });
  return Annotate(status,
                  absl::StrCat("between the ranks ", ranks, " of host ",
                               map_.name_of(me_), ", counted from 0 there"));
}

absl::Status Task::Send(Rank to, std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      sends_.emplace_back(),
      network_.StartSend(to, Lane::kCollective, context_.signature(), bytes));
  return absl::OkStatus();
}

absl::Status Task::AwaitSends() {
  for (; !sends_.empty(); sends_.pop_front()) {
    TESSERA_RETURN_IF_ERROR(Await(sends_.front()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ConstBuffer> Task::ScaledInput() {
  const ConstBuffer input = operation_.input;
  if (!ScalesInput(operation_.reduction)) return input;
  TESSERA_ASSIGN_OR_RETURN(const Buffer scaled,
                           Scratch(input.count, input.dtype));
  ScaleInto(operation_.reduction, input, scaled);
  return scaled;
}

absl::Status Task::ExchangeLeaders(
    absl::FunctionRef<std::span<const std::byte>(int64_t)> sent_to,
    absl::FunctionRef<std::span<std::byte>(int64_t)> received_from) {
  std::vector<Request> receives;
  for (int64_t d = 1; d < hosts(); ++d) {
    const int64_t host = HostAt(d);
    TESSERA_ASSIGN_OR_RETURN(
        receives.emplace_back(),
        Receive(map_.leader_of(host), received_from(host)));
    TESSERA_RETURN_IF_ERROR(Send(map_.leader_of(host), sent_to(host)));
  }
  TESSERA_RETURN_IF_ERROR(AwaitAll(receives));
  return AwaitSends();
}

absl::Status Task::Barrier() {
  TESSERA_RETURN_IF_ERROR(Within(BarrierOf()));
  if (IsLeader()) {
    const auto nothing = [](int64_t) { return std::span<std::byte>(); };
    TESSERA_RETURN_IF_ERROR(ExchangeLeaders(nothing, nothing));
  }
  return Within(BarrierOf());
}

// Beyond one piece the hosts form a chain, which starts at the root's host.
absl::Status Task::Broadcast() {
  const Buffer data = operation_.output;
  const Rank root = operation_.root;
  if (me_ == root) CopyUnlessSame(data, operation_.input);
  const int64_t root_host = map_.host_of(root);
  const int64_t distance = (host_ - root_host + hosts()) % hosts();
  const auto keeper = [&](int64_t d) {
    return d == 0 ? root : map_.leader_of((root_host + d) % hosts());
  };
  const bool keeps = me_ == keeper(distance);
  const int64_t piece = kPieceBytes / SizeInBytes(data.dtype);
  const bool chain = data.count > piece;
  std::deque<Request> receives;
  for (int64_t at = 0; keeps && distance > 0 && at < data.count; at += piece) {
    const Buffer part = data.Slice(at, std::min(piece, data.count - at));
    TESSERA_ASSIGN_OR_RETURN(
        receives.emplace_back(),
        Receive(keeper(chain ? distance - 1 : 0), part.AsBytes()));
  }
  // The hosts to which this rank sends.
  const int64_t first = chain ? distance + 1 : 1;
  const int64_t last = chain ? distance + 1 : distance == 0 ? hosts() - 1 : 0;
  for (int64_t at = 0; at < data.count; at += piece) {
    const Buffer part = data.Slice(at, std::min(piece, data.count - at));
    if (!receives.empty()) {
      TESSERA_RETURN_IF_ERROR(Await(receives.front()));
      receives.pop_front();
    }
    for (int64_t d = first; keeps && d <= std::min(last, hosts() - 1); ++d) {
      TESSERA_RETURN_IF_ERROR(Send(keeper(d), part.AsBytes()));
    }
    TESSERA_RETURN_IF_ERROR(
        BroadcastWithin(part, map_.place_of(keeper(distance))));
  }
  return AwaitSends();
}

absl::Status Task::Collect(ConstBuffer own, const Blocks& blocks, Buffer all) {
  TESSERA_RETURN_IF_ERROR(Within(
      AllGatherOf(own, RegionOf(all, blocks, host_), CountsHere(blocks))));
  if (!IsLeader()) return absl::OkStatus();
  const auto region = [&](int64_t host) {
    return RegionOf(all, blocks, host).AsBytes();
  };
  return ExchangeLeaders([&](int64_t) { return region(host_); }, region);
}

// Folds block `block` of the inputs of all ranks, which lie in `all`.
void FoldAll(const Operation& operation, int64_t ranks, ConstBuffer all,
             int64_t first, Buffer output) {
  if (output.count == 0) return;
  const int64_t each = all.count / ranks;
  std::vector<const void*> sources;
  for (int64_t r = 0; r < ranks; ++r) {
    sources.push_back(all.Slice(r * each + first, 0).data);
  }
  void* destinations[] = {output.data};
  Combine(Combination::Whole(operation.reduction, all.dtype, ranks), sources,
          destinations, output.count);
}

absl::Status Task::AllReduceSmall() {
  const ConstBuffer input = operation_.input;
  TESSERA_ASSIGN_OR_RETURN(const Buffer all,
                           Scratch(map_.size() * input.count, input.dtype));
  TESSERA_RETURN_IF_ERROR(
      Collect(input, Blocks::Even(map_.size(), input.count), all));
  if (IsLeader()) FoldAll(operation_, map_.size(), all, 0, operation_.output);
  return BroadcastWithin(operation_.output);
}

absl::Status Task::ReduceScatterSmall(const Blocks& blocks) {
  const ConstBuffer input = operation_.input;
  TESSERA_ASSIGN_OR_RETURN(const Buffer all,
                           Scratch(map_.size() * input.count, input.dtype));
  TESSERA_RETURN_IF_ERROR(
      Collect(input, Blocks::Even(map_.size(), input.count), all));
  TESSERA_RETURN_IF_ERROR(BroadcastWithin(all));
  FoldAll(operation_, map_.size(), all, blocks.offset(me_.value()),
          operation_.output);
  return absl::OkStatus();
}

// An all-reduce along the chain of hosts.
class Chain {
 public:
  Chain(Task& task, ConstBuffer input, Buffer output)
      : task_(task),
        input_(input),
        output_(output),
        piece_(kPieceBytes / SizeInBytes(input.dtype)),
        pieces_((input.count + piece_ - 1) / piece_),
        is_leader_(task.IsLeader()),
        is_first_(task.host_ == 0),
        is_last_(task.host_ + 1 == task.hosts()),
        lag_(is_last_
                 ? 0
                 : std::min(pieces_, 2 * (task.hosts() - 1 - task.host_) + 1)) {
  }

  absl::Status Run() {
    if (is_leader_) TESSERA_RETURN_IF_ERROR(Prepare());
    for (int64_t k = 0; k < pieces_ + lag_; ++k) {
      if (k < pieces_) TESSERA_RETURN_IF_ERROR(Forward(k));
      if (k >= lag_) TESSERA_RETURN_IF_ERROR(Backward(k - lag_));
    }
    return task_.AwaitSends();
  }

 private:
  static constexpr int64_t kSlots = 4;  // Pieces of scratch memory.

  template <typename AnyBuffer>
  AnyBuffer At(AnyBuffer whole, int64_t k) const {
    const int64_t first = k * piece_;
    return whole.Slice(first, std::min(piece_, whole.count - first));
  }
  Buffer SlotOf(Buffer slots, int64_t k) const {
    return slots.Slice(k % kSlots * piece_, At(output_, k).count);
  }
  Rank LeaderAt(int64_t distance) const {
    return task_.map_.leader_of(task_.host_ + distance);
  }

  // Starts all receives of results and the first ones of partial sums.
  absl::Status Prepare() {
    if (!is_last_) {
      for (int64_t k = 0; k < pieces_; ++k) {
        TESSERA_ASSIGN_OR_RETURN(
            results_.emplace_back(),
            task_.Receive(LeaderAt(1), At(output_, k).AsBytes()));
      }
      TESSERA_ASSIGN_OR_RETURN(outgoing_,
                               task_.Scratch(kSlots * piece_, input_.dtype));
    }
    if (is_first_) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(incoming_,
                             task_.Scratch(kSlots * piece_, input_.dtype));
    TESSERA_ASSIGN_OR_RETURN(folded_, task_.Scratch(piece_, input_.dtype));
    for (int64_t k = 0; k < std::min(kSlots, pieces_); ++k) {
      TESSERA_RETURN_IF_ERROR(ExpectPartial(k));
    }
    return absl::OkStatus();
  }

  absl::Status ExpectPartial(int64_t k) {
    TESSERA_ASSIGN_OR_RETURN(
        partials_.emplace_back(),
        task_.Receive(LeaderAt(-1), SlotOf(incoming_, k).AsBytes()));
    return absl::OkStatus();
  }

  // The leader's input of piece k: after the partial sum of earlier hosts.
  absl::StatusOr<ConstBuffer> FoldPartial(int64_t k) {
    const ConstBuffer own = At(input_, k);
    if (is_first_) return own;
    TESSERA_RETURN_IF_ERROR(task_.Await(partials_.front()));
    partials_.pop_front();
    const Buffer folded = folded_.Slice(0, own.count);
    CombineTwo(Combination::Partial(task_.operation_.reduction, own.dtype),
               SlotOf(incoming_, k).data, own.data, folded.data, own.count);
    if (k + kSlots < pieces_)
      TESSERA_RETURN_IF_ERROR(ExpectPartial(k + kSlots));
    return folded;
  }

  absl::Status Forward(int64_t k) {
    if (!is_leader_) return task_.ReduceWithin(At(input_, k), {}, 0);
    TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input, FoldPartial(k));
    Buffer place = At(output_, k);
    if (!is_last_) {
      place = SlotOf(outgoing_, k);
      if (k >= kSlots) TESSERA_RETURN_IF_ERROR(AwaitForward());
    }
    TESSERA_RETURN_IF_ERROR(task_.ReduceWithin(input, place, 0));
    if (!is_last_) {
      TESSERA_RETURN_IF_ERROR(task_.Send(LeaderAt(1), place.AsBytes()));
      forwards_.push_back(task_.sends_.back());
      return absl::OkStatus();
    }
    Finish(task_.operation_.reduction, place, task_.map_.size());
    return absl::OkStatus();
  }

  // Waits for the oldest message to the next host, whose memory is used again.
  absl::Status AwaitForward() {
    TESSERA_RETURN_IF_ERROR(task_.Await(forwards_.front()));
    forwards_.pop_front();
    return absl::OkStatus();
  }

  absl::Status Backward(int64_t k) {
    const Buffer result = At(output_, k);
    if (is_leader_ && !is_last_) {
      TESSERA_RETURN_IF_ERROR(task_.Await(results_.front()));
      results_.pop_front();
    }
    if (is_leader_ && !is_first_) {
      TESSERA_RETURN_IF_ERROR(task_.Send(LeaderAt(-1), result.AsBytes()));
    }
    return task_.BroadcastWithin(result);
  }

  Task& task_;
  const ConstBuffer input_;
  const Buffer output_;
  const int64_t piece_, pieces_;  // Elements of a piece; their number.
  const bool is_leader_, is_first_, is_last_;
  // A result returns after as many more pieces were sent forward.
  const int64_t lag_;
  Buffer incoming_, outgoing_;  // kSlots pieces.
  Buffer folded_;
  std::deque<Request> partials_, results_, forwards_;
};

absl::Status Task::AllReduceByChain(ConstBuffer input, Buffer output) {
  return Chain(*this, input, output).Run();
}

absl::Status Task::AllReduce() {
  if (operation_.input.count == 0) return Barrier();
  if (operation_.input.bytes() * map_.size() <= kSmallBytes) {
    return AllReduceSmall();
  }
  TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input, ScaledInput());
  return AllReduceByChain(input, operation_.output);
}

absl::Status Task::ForEachPiece(
    const Blocks& blocks, DType dtype,
    absl::FunctionRef<absl::Status(const Piece&)> visit) {
  const int64_t piece = kPieceBytes / SizeInBytes(dtype);
  for (int64_t d = 1; d < hosts(); ++d) {
    const std::span<const Rank> ranks = map_.ranks_of(HostAt(d));
    int64_t longest = 0;
    for (const Rank rank : ranks) {
      longest = std::max(longest, blocks.count(rank.value()));
    }
    for (int64_t at = 0; at < longest; at += piece) {
      for (size_t j = 0; j < ranks.size(); ++j) {
        const int64_t left = blocks.count(ranks[j].value()) - at;
        if (left <= 0) continue;
        TESSERA_RETURN_IF_ERROR(
            visit({.rank = ranks[j],
                   .keeper = static_cast<int64_t>(j) % RanksHere(),
                   .first = blocks.offset(ranks[j].value()) + at,
                   .count = std::min(piece, left)}));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Task::AllGather() {
  const Buffer all = operation_.output;
  const ConstBuffer own = operation_.input;
  const Blocks blocks = OutputBlocks(operation_, map_.size());
  if (blocks.total() == 0) return Barrier();
  if (all.bytes() <= kSmallBytes) {
    TESSERA_RETURN_IF_ERROR(Collect(own, blocks, all));
    return BroadcastWithin(all);
  }
  const int64_t here = map_.place_of(me_);
  std::deque<Request> receives;
  TESSERA_RETURN_IF_ERROR(
      ForEachPiece(blocks, all.dtype, [&](const Piece& piece) -> absl::Status {
        if (piece.keeper != here) return absl::OkStatus();
        TESSERA_ASSIGN_OR_RETURN(
            receives.emplace_back(),
            Receive(piece.rank, all.Slice(piece.first, piece.count).AsBytes()));
        return absl::OkStatus();
      }));
  const int64_t each = kPieceBytes / SizeInBytes(all.dtype);
  for (int64_t d = 1; d < hosts(); ++d) {
    for (int64_t at = 0; at < own.count; at += each) {
      TESSERA_RETURN_IF_ERROR(
          Send(KeeperOn(HostAt(hosts() - d)),
               own.Slice(at, std::min(each, own.count - at)).AsBytes()));
    }
  }
  TESSERA_RETURN_IF_ERROR(Within(
      AllGatherOf(own, RegionOf(all, blocks, host_), CountsHere(blocks))));
  TESSERA_RETURN_IF_ERROR(
      ForEachPiece(blocks, all.dtype, [&](const Piece& piece) -> absl::Status {
        if (piece.keeper == here) {
          TESSERA_RETURN_IF_ERROR(Await(receives.front()));
          receives.pop_front();
        }
        return BroadcastWithin(all.Slice(piece.first, piece.count),
                               piece.keeper);
      }));
  return AwaitSends();
}

// Starts to receive the partial sums of the other hosts for this rank's block.
// `partials` has their memory, by host; this host's is `output`.
absl::StatusOr<std::vector<Request>> Task::ReceivePartials(
    Buffer output, std::vector<Buffer>& partials) {
  partials.assign(static_cast<size_t>(hosts()), output);
  std::vector<Request> receives;
  const int64_t each = kPieceBytes / SizeInBytes(output.dtype);
  for (int64_t d = 1; d < hosts(); ++d) {
    const int64_t host = HostAt(hosts() - d);
    Buffer& partial = partials[static_cast<size_t>(host)];
    TESSERA_ASSIGN_OR_RETURN(partial, Scratch(output.count, output.dtype));
    for (int64_t at = 0; at < output.count; at += each) {
      const Buffer part = partial.Slice(at, std::min(each, output.count - at));
      TESSERA_ASSIGN_OR_RETURN(receives.emplace_back(),
                               Receive(KeeperOn(host), part.AsBytes()));
    }
  }
  return receives;
}

absl::Status Task::ReduceScatter() {
  const Blocks blocks = InputBlocks(operation_, map_.size());
  if (blocks.total() == 0) return Barrier();
  if (operation_.input.bytes() * map_.size() <= kSmallBytes) {
    return ReduceScatterSmall(blocks);
  }
  const DType dtype = operation_.input.dtype;
  const Buffer output = operation_.output;
  TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input, ScaledInput());
  if (context_.in_rank_order()) {
    TESSERA_ASSIGN_OR_RETURN(const Buffer sums, Scratch(input.count, dtype));
    TESSERA_RETURN_IF_ERROR(AllReduceByChain(input, sums));
    CopyUnlessSame(output,
                   sums.Slice(blocks.offset(me_.value()), output.count));
    return absl::OkStatus();
  }
  const int64_t here = map_.place_of(me_);
  std::vector<Buffer> partials;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Request> receives,
                           ReceivePartials(output, partials));
  TESSERA_RETURN_IF_ERROR(
      ForEachPiece(blocks, dtype, [&](const Piece& piece) -> absl::Status {
        const ConstBuffer part = input.Slice(piece.first, piece.count);
        if (piece.keeper != here) return ReduceWithin(part, {}, piece.keeper);
        TESSERA_ASSIGN_OR_RETURN(const Buffer sum, Scratch(piece.count, dtype));
        TESSERA_RETURN_IF_ERROR(ReduceWithin(part, sum, piece.keeper));
        return Send(piece.rank, sum.AsBytes());
      }));
  TESSERA_RETURN_IF_ERROR(Within(
      ReduceScatterOf(RegionOf(input, blocks, host_), output,
                      PartialOf(operation_.reduction), CountsHere(blocks))));
  TESSERA_RETURN_IF_ERROR(AwaitAll(receives));
  std::vector<const void*> sources;
  for (const Buffer& partial : partials) sources.push_back(partial.data);
  void* destinations[] = {output.data};
  if (output.count > 0) {
    Combine(Combination::Partial(operation_.reduction, dtype), sources,
            destinations, output.count);
  }
  Finish(operation_.reduction, output, map_.size());
  return AwaitSends();
}

absl::Status Task::AllToAllSmall() {
  const ConstBuffer input = operation_.input;
  const int64_t each = input.count / map_.size();
  const int64_t count = map_.size() * RanksHere() * each;
  // Blocks by source and destination: all inputs of this host, and the blocks
  // of all ranks for this host.
  TESSERA_ASSIGN_OR_RETURN(const Buffer inputs, Scratch(count, input.dtype));
  TESSERA_ASSIGN_OR_RETURN(const Buffer outputs, Scratch(count, input.dtype));
  TESSERA_RETURN_IF_ERROR(Within(AllGatherOf(input, inputs)));
  if (IsLeader()) {
    TESSERA_RETURN_IF_ERROR(ExchangeBlocks(inputs, outputs));
  }
  TESSERA_RETURN_IF_ERROR(BroadcastWithin(outputs));
  const int64_t row = RanksHere() * each;
  const int64_t mine = map_.place_of(me_) * each;
  for (int64_t r = 0; r < map_.size(); ++r) {
    CopyUnlessSame(operation_.output.Slice(r * each, each),
                   outputs.Slice(r * row + mine, each));
  }
  return absl::OkStatus();
}

// Sends each host the columns of `inputs` for its ranks.
absl::Status Task::ExchangeBlocks(ConstBuffer inputs, Buffer outputs) {
  const Blocks columns =
      Blocks::Even(map_.size(), inputs.count / RanksHere() / map_.size());
  const Blocks rows = Blocks::Even(map_.size(), outputs.count / map_.size());
  const int64_t row = columns.total();
  const auto pack = [&](int64_t host, Buffer to) {
    const int64_t count = to.count / RanksHere();
    for (int64_t r = 0; r < RanksHere(); ++r) {
      CopyUnlessSame(to.Slice(r * count, count),
                     RegionOf(inputs.Slice(r * row, row), columns, host));
    }
  };
  pack(host_, RegionOf(outputs, rows, host_));
  // By destination.
  TESSERA_ASSIGN_OR_RETURN(const Buffer packed,
                           Scratch(inputs.count, inputs.dtype));
  const Blocks to_ranks = Blocks::Even(map_.size(), inputs.count / map_.size());
  for (int64_t d = 1; d < hosts(); ++d) {
    pack(HostAt(d), RegionOf(packed, to_ranks, HostAt(d)));
  }
  return ExchangeLeaders(
      [&](int64_t host) { return RegionOf(packed, to_ranks, host).AsBytes(); },
      [&](int64_t host) { return RegionOf(outputs, rows, host).AsBytes(); });
}

absl::Status Task::AllToAll() {
  const Buffer output = operation_.output;
  ConstBuffer input = operation_.input;
  if (!operation_.uneven()) {
    if (input.count == 0) return Barrier();
    constexpr int64_t kMost = TwoLevelCollectives::kSmallExchangeBytes;
    if (input.bytes() * map_.size() <= kMost) return AllToAllSmall();
  }
  if (input.data == output.data && input.count > 0) {
    TESSERA_ASSIGN_OR_RETURN(const Buffer copy,
                             Scratch(input.count, input.dtype));
    CopyUnlessSame(copy, input);
    input = copy;
  }
  const Blocks sent = InputBlocks(operation_, map_.size());
  const Blocks received = OutputBlocks(operation_, map_.size());
  const auto block = [](auto all, const Blocks& blocks, Rank rank) {
    return all.Slice(blocks.offset(rank.value()), blocks.count(rank.value()));
  };
  std::vector<Request> receives;
  for (int64_t d = 1; d < hosts(); ++d) {
    for (const Rank from : map_.ranks_of(HostAt(hosts() - d))) {
      const Buffer place = block(output, received, from);
      if (place.count == 0) continue;
      TESSERA_ASSIGN_OR_RETURN(receives.emplace_back(),
                               Receive(from, place.AsBytes()));
    }
    for (const Rank to : map_.ranks_of(HostAt(d))) {
      const ConstBuffer part = block(input, sent, to);
      if (part.count == 0) continue;
      TESSERA_RETURN_IF_ERROR(Send(to, part.AsBytes()));
    }
  }
  const bool uneven = operation_.uneven();
  TESSERA_RETURN_IF_ERROR(Within(AllToAllOf(
      RegionOf(input, sent, host_), RegionOf(output, received, host_),
      uneven ? CountsHere(sent) : std::vector<int64_t>(),
      uneven ? CountsHere(received) : std::vector<int64_t>())));
  TESSERA_RETURN_IF_ERROR(AwaitAll(receives));
  return AwaitSends();
}

}  // namespace

bool TwoLevelCollectives::Implements(OpKind kind) const {
  switch (kind) {
    case OpKind::kBarrier:
    case OpKind::kBroadcast:
      return true;
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      return map_.in_order();
    default:
      return false;
  }
}

bool TwoLevelCollectives::FoldsInRankOrder(const Operation& operation) const {
  // The partial sums of 16-bit types would be rounded on every host.
  const DType dtype = operation.input.dtype;
  return Implements(operation.kind) && dtype != DType::kF16 &&
         dtype != DType::kBF16 &&
         operation.reduction.op != ReduceOp::kScaledSum;
}

absl::Status TwoLevelCollectives::Run(const Operation& operation,
                                      OperationContext& context) {
  Task task(map_, within_, network_, operation, context);
  switch (operation.kind) {
    case OpKind::kBarrier:
      return task.Barrier();
    case OpKind::kBroadcast:
      return task.Broadcast();
    case OpKind::kAllReduce:
      return task.AllReduce();
    case OpKind::kAllGather:
      return task.AllGather();
    case OpKind::kReduceScatter:
      return task.ReduceScatter();
    case OpKind::kAllToAll:
      return task.AllToAll();
    default:
      return absl::UnimplementedError(absl::StrCat(
          "two_level does not execute ", OpKindName(operation.kind)));
  }
}

}  // namespace tessera::collectives
