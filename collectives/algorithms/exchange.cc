#include "collectives/algorithms/exchange.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {

namespace {

// The offset of the j-th block after `first`, modulo the number of blocks.
int64_t OffsetFrom(const Blocks& blocks, int64_t first, int64_t j) {
  const int64_t n = blocks.ranks();
  const int64_t begin = blocks.offset(first);
  if (first + j <= n) return blocks.offset(first + j) - begin;
  return blocks.total() - begin + blocks.offset(first + j - n);
}

// Packs the slots that move in step k, or unpacks them.
enum class Packing { kPack, kUnpack };

void MoveSlots(Packing packing, int64_t ranks, int64_t k, int64_t count,
               VectorView slots, VectorView packed) {
  int64_t place = 0;
  for (int64_t slot = 0; slot < ranks; ++slot) {
    if (!BruckSlotMoves(slot, k)) continue;
    std::byte* const apart = slots.at(slot * count);
    std::byte* const together = packed.at(place * count);
    CopyBytes(packing == Packing::kPack ? together : apart,
              packing == Packing::kPack ? apart : together,
              count * slots.element);
    ++place;
  }
}

// Copies blocks, which start with block `first` and wrap around, to their final
// positions.
void Unrotate(const Blocks& blocks, int64_t first, ConstVectorView rotated,
              VectorView all) {
  const int64_t tail = blocks.total() - blocks.offset(first);
  CopyBytes(all.at(blocks.offset(first)), rotated.data, tail * all.element);
  CopyBytes(all.data, rotated.at(tail), blocks.offset(first) * all.element);
}

absl::StatusOr<VectorView> Take(RankGroup& group, int64_t count,
                                int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           group.Scratch(count * element));
  return VectorView(memory.data(), element);
}

// Number of steps in flight.
constexpr int64_t kWindow = 8;

// Keeps the requests of up to kDepth steps in flight.
class Window {
 public:
  std::span<Request> OfStep(int64_t step) {
    return std::span(requests_).subspan(
        static_cast<size_t>(2 * (step % kWindow)), 2);
  }
  absl::Status FinishAll(RankGroup& group) { return group.Finish(requests_); }

 private:
  std::array<Request, 2 * kWindow> requests_ = {};
};

// Sends outgoing(rank) to every other rank and receives incoming(rank).
template <typename Outgoing, typename Incoming>
absl::Status ExchangeWithAll(RankGroup& group, const Outgoing& outgoing,
                             const Incoming& incoming) {
  const int64_t n = group.size();
  Window window;
  for (int64_t step = 1; step < n; ++step) {
    group.Step(step, n - 1);
    const std::span<Request> requests = window.OfStep(step);
    TESSERA_RETURN_IF_ERROR(group.Finish(requests));
    const int64_t to = (group.rank() + step) % n;
    const int64_t from = (group.rank() + n - step) % n;
    TESSERA_ASSIGN_OR_RETURN(requests[0], group.Receive(from, incoming(from)));
    TESSERA_ASSIGN_OR_RETURN(requests[1], group.Send(to, outgoing(to)));
  }
  return window.FinishAll(group);
}

// Limit for all contributions to one chunk together, so that memory does not
// grow with the number of ranks and data is read while still in cache.
constexpr int64_t kLandingBytes = 4 << 20;
constexpr int64_t kShortestChunkBytes = 1 << 10;

int64_t ChunkFor(int64_t ranks, int64_t element, int64_t chunk) {
  const int64_t most =
      std::max(kLandingBytes / ranks, kShortestChunkBytes) / element;
  return std::clamp<int64_t>(chunk, 1, most);
}

// Two chunks: one is received while the previous one is reduced.
int64_t LandingBytes(int64_t ranks, const Chunks& mine, int64_t element) {
  return (mine.count() > 1 ? 2 : 1) * (ranks - 1) * mine.longest() * element;
}

class OrderedRun {
 public:
  OrderedRun(RankGroup& group, const Blocks& blocks, ConstVectorView input,
             VectorView own, const Combination& combination, int64_t chunk)
      : group_(group),
        blocks_(blocks),
        input_(input),
        own_(own),
        combination_(combination),
        chunk_(ChunkFor(group.size(), input.element, chunk)),
        mine_(blocks.count(group.rank()), chunk_) {}

  absl::Status Run() {
    const int64_t n = group_.size();
    TESSERA_ASSIGN_OR_RETURN(receives_, group_.ScratchOf<Request>(2 * n));
    TESSERA_ASSIGN_OR_RETURN(sends_, group_.ScratchOf<Request>(2 * n));
    TESSERA_ASSIGN_OR_RETURN(sources_, group_.ScratchOf<const void*>(n));
    TESSERA_ASSIGN_OR_RETURN(
        const std::span<std::byte> memory,
        group_.Scratch(LandingBytes(n, mine_, input_.element)));
    landing_ = {memory.data(), input_.element};
    const int64_t rounds = Chunks(blocks_.largest(), chunk_).count();
    for (int64_t k = -1; k < rounds; ++k) {
      group_.Step(k + 1, rounds);
      TESSERA_RETURN_IF_ERROR(Start(k + 1));
      if (k >= 0) TESSERA_RETURN_IF_ERROR(Take(k));
    }
    return group_.Finish(sends_);
  }

 private:
  std::span<Request> OfRound(std::span<Request> requests, int64_t k) const {
    const auto n = static_cast<size_t>(group_.size());
    return requests.subspan(static_cast<size_t>(k % 2) * n, n);
  }
  // The landing buffer of a rank's contribution to chunk k of this rank's
  // block.
  VectorView Landing(int64_t rank, int64_t k) const {
    const int64_t others = group_.size() - 1;
    const int64_t place = rank < group_.rank() ? rank : rank - 1;
    return landing_.From(((k % 2) * others + place) * mine_.longest());
  }

  absl::Status Start(int64_t k) {
    const int64_t n = group_.size();
    const std::span<Request> receives = OfRound(receives_, k);
    const std::span<Request> sends = OfRound(sends_, k);
    TESSERA_RETURN_IF_ERROR(group_.Finish(sends));
    for (int64_t step = 1; step < n; ++step) {
      const int64_t from = (group_.rank() + n - step) % n;
      const int64_t to = (group_.rank() + step) % n;
      const Chunks theirs(blocks_.count(to), chunk_);
      if (k < mine_.count()) {
        TESSERA_ASSIGN_OR_RETURN(
            receives[static_cast<size_t>(from)],
            group_.Receive(from, Landing(from, k).Range(0, mine_.length(k))));
      }
      if (k < theirs.count()) {
        TESSERA_ASSIGN_OR_RETURN(
            sends[static_cast<size_t>(to)],
            group_.Send(to, input_.Range(blocks_.offset(to) + theirs.first(k),
                                         theirs.length(k))));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Take(int64_t k) {
    if (k >= mine_.count()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(group_.Finish(OfRound(receives_, k)));
    if (mine_.length(k) == 0) return absl::OkStatus();
    group_.Enter(Phase::kReducing);
    for (int64_t rank = 0; rank < group_.size(); ++rank) {
      sources_[static_cast<size_t>(rank)] =
          rank == group_.rank()
              ? input_.at(blocks_.offset(rank) + mine_.first(k))
              : Landing(rank, k).data;
    }
    void* const destinations[] = {own_.at(mine_.first(k))};
    Combine(combination_, sources_, destinations, mine_.length(k));
    return absl::OkStatus();
  }

  RankGroup& group_;
  const Blocks& blocks_;
  ConstVectorView input_;
  VectorView own_;
  Combination combination_;
  int64_t chunk_;
  Chunks mine_;
  VectorView landing_;
  std::span<Request> receives_;
  std::span<Request> sends_;
  std::span<const void*> sources_;
};

}  // namespace

absl::Status BruckAllGather(RankGroup group, const Blocks& blocks,
                            VectorView all) {
  const int64_t n = group.size();
  const int64_t me = group.rank();
  if (n == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const VectorView rotated,
                           Take(group, blocks.total(), all.element));
  CopyBytes(rotated.data, all.at(blocks.offset(me)),
            blocks.count(me) * all.element);
  const int64_t steps = CeilLog2(n);
  for (int64_t k = 0; k < steps; ++k) {
    group.Step(k + 1, steps);
    const int64_t far = int64_t{1} << k;
    const int64_t moves = BruckGatherBlocks(n, k);
    const int64_t begin = OffsetFrom(blocks, me, far);
    const int64_t end = OffsetFrom(blocks, me, far + moves);
    TESSERA_RETURN_IF_ERROR(group.Exchange(
        (me + n - far) % n, rotated.Range(0, OffsetFrom(blocks, me, moves)),
        (me + far) % n, rotated.Range(begin, end - begin)));
  }
  group.Enter(Phase::kCopying);
  Unrotate(blocks, me, rotated, all);
  return absl::OkStatus();
}

absl::Status BruckAllToAll(RankGroup group, int64_t count,
                           ConstVectorView input, VectorView output) {
  const int64_t n = group.size();
  const int64_t me = group.rank();
  TESSERA_ASSIGN_OR_RETURN(const VectorView slots,
                           Take(group, n * count, output.element));
  const int64_t half = n / 2 * count;
  TESSERA_ASSIGN_OR_RETURN(const VectorView out,
                           Take(group, half, output.element));
  TESSERA_ASSIGN_OR_RETURN(const VectorView in,
                           Take(group, half, output.element));
  // Slot j first holds the block for rank me + j, finally the block from rank
  // me - j.
  const int64_t tail = (n - me) * count;
  CopyBytes(slots.data, input.at(me * count), tail * slots.element);
  CopyBytes(slots.at(tail), input.data, me * count * slots.element);
  const int64_t steps = CeilLog2(n);
  for (int64_t k = 0; k < steps; ++k) {
    group.Step(k + 1, steps);
    const int64_t far = int64_t{1} << k;
    const int64_t moving = BruckMovingSlots(n, k) * count;
    MoveSlots(Packing::kPack, n, k, count, slots, out);
    TESSERA_RETURN_IF_ERROR(group.Exchange((me + far) % n, out.Range(0, moving),
                                           (me + n - far) % n,
                                           in.Range(0, moving)));
    MoveSlots(Packing::kUnpack, n, k, count, slots, in);
  }
  group.Enter(Phase::kCopying);
  for (int64_t slot = 0; slot < n; ++slot) {
    CopyBytes(output.at((me + n - slot) % n * count), slots.at(slot * count),
              count * slots.element);
  }
  return absl::OkStatus();
}

absl::Status DisseminationBarrier(RankGroup group) {
  const int64_t n = group.size();
  const int64_t steps = CeilLog2(n);
  for (int64_t k = 0; k < steps; ++k) {
    group.Step(k + 1, steps);
    const int64_t far = int64_t{1} << k;
    TESSERA_RETURN_IF_ERROR(group.Exchange((group.rank() + far) % n, {},
                                           (group.rank() + n - far) % n, {}));
  }
  return absl::OkStatus();
}

absl::Status PairwiseAllToAll(RankGroup group, const Blocks& in_blocks,
                              ConstVectorView input, const Blocks& out_blocks,
                              VectorView output) {
  const int64_t me = group.rank();
  group.Enter(Phase::kCopying);
  CopyBytes(output.at(out_blocks.offset(me)), input.at(in_blocks.offset(me)),
            out_blocks.count(me) * output.element);
  return ExchangeWithAll(
      group, [&](int64_t to) { return input.Range(in_blocks, to, to + 1); },
      [&](int64_t from) { return output.Range(out_blocks, from, from + 1); });
}

absl::Status PairwiseAllGather(RankGroup group, const Blocks& blocks,
                               VectorView all) {
  const int64_t me = group.rank();
  return ExchangeWithAll(
      group, [&](int64_t) { return all.Range(blocks, me, me + 1); },
      [&](int64_t from) { return all.Range(blocks, from, from + 1); });
}

absl::Status LinearGather(RankGroup group, int64_t root, const Blocks& blocks,
                          ConstVectorView own, VectorView all) {
  const int64_t me = group.rank();
  if (me != root) return group.SendNow(root, own.Range(0, blocks.count(me)));
  TESSERA_ASSIGN_OR_RETURN(const std::span<Request> requests,
                           group.ScratchOf<Request>(group.size()));
  for (int64_t from = 0; from < group.size(); ++from) {
    if (from == root) continue;
    TESSERA_ASSIGN_OR_RETURN(
        requests[static_cast<size_t>(from)],
        group.Receive(from, all.Range(blocks, from, from + 1)));
  }
  std::byte* const place = all.at(blocks.offset(me));
  if (own.data != place) {
    CopyBytes(place, own.data, blocks.count(me) * all.element);
  }
  return group.Finish(requests);
}

absl::Status LinearScatter(RankGroup group, int64_t root, const Blocks& blocks,
                           ConstVectorView all, VectorView own) {
  const int64_t me = group.rank();
  if (me != root) {
    return group.ReceiveNow(root, own.Range(0, blocks.count(me)));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<Request> requests,
                           group.ScratchOf<Request>(group.size()));
  for (int64_t to = 0; to < group.size(); ++to) {
    if (to == root) continue;
    TESSERA_ASSIGN_OR_RETURN(requests[static_cast<size_t>(to)],
                             group.Send(to, all.Range(blocks, to, to + 1)));
  }
  const std::byte* const place = all.at(blocks.offset(me));
  if (own.data != place) {
    CopyBytes(own.data, place, blocks.count(me) * all.element);
  }
  return group.Finish(requests);
}

int64_t OrderedLandingBytes(int64_t ranks, int64_t block, int64_t element,
                            int64_t chunk) {
  return LandingBytes(ranks, Chunks(block, ChunkFor(ranks, element, chunk)),
                      element);
}

absl::Status OrderedReduceScatter(RankGroup group, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Combination& combination,
                                  int64_t chunk) {
  if (group.size() == 1) {
    CombineOne(combination, input.data, own.data, blocks.total());
    return absl::OkStatus();
  }
  return OrderedRun(group, blocks, input, own, combination, chunk).Run();
}

}  // namespace tessera::collectives
