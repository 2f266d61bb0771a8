#include "collectives/algorithms/exchange.h"

#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {

namespace {

// The offset of the j-th block after `first`, wrapping around.
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

// Copies blocks that start with block `first` and wrap around to their final
// places.
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

namespace {

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

}  // namespace

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

}  // namespace tessera::collectives
