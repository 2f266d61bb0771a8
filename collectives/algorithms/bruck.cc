#include "collectives/algorithms/bruck.h"

#include "base/status_macros.h"
#include "collectives/algorithms/bruck_schedule.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// Where the j-th block from `first` on begins, when blocks are counted from
// `first` on and around.
int64_t OffsetFrom(const Blocks& blocks, int64_t first, int64_t j) {
  const int64_t n = blocks.ranks();
  const int64_t begin = blocks.offset(first);
  if (first + j <= n) return blocks.offset(first + j) - begin;
  return blocks.total() - begin + blocks.offset(first + j - n);
}

// The slots that move in step k, packed one after another, or taken apart
// again.
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

// Blocks from `first` on and around, to where they belong.
void Unrotate(const Blocks& blocks, int64_t first, ConstVectorView rotated,
              VectorView all) {
  const int64_t tail = blocks.total() - blocks.offset(first);
  CopyBytes(all.at(blocks.offset(first)), rotated.data, tail * all.element);
  CopyBytes(all.data, rotated.at(tail), blocks.offset(first) * all.element);
}

absl::StatusOr<VectorView> Take(Party& party, int64_t count, int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           party.Scratch(count * element));
  return VectorView(memory.data(), element);
}

}  // namespace

absl::Status BruckAllGather(Party party, const Blocks& blocks, VectorView all) {
  const int64_t n = party.size();
  const int64_t me = party.rank();
  if (n == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const VectorView rotated,
                           Take(party, blocks.total(), all.element));
  CopyBytes(rotated.data, all.at(blocks.offset(me)),
            blocks.count(me) * all.element);
  const int64_t steps = CeilLog2(n);
  for (int64_t k = 0; k < steps; ++k) {
    party.Step(k + 1, steps);
    const int64_t far = int64_t{1} << k;
    const int64_t moves = BruckGatherBlocks(n, k);
    const int64_t begin = OffsetFrom(blocks, me, far);
    const int64_t end = OffsetFrom(blocks, me, far + moves);
    TESSERA_RETURN_IF_ERROR(party.Exchange(
        (me + n - far) % n, rotated.Range(0, OffsetFrom(blocks, me, moves)),
        (me + far) % n, rotated.Range(begin, end - begin)));
  }
  party.Enter(Phase::kCopying);
  Unrotate(blocks, me, rotated, all);
  return absl::OkStatus();
}

absl::Status BruckAllToAll(Party party, int64_t count, ConstVectorView input,
                           VectorView output) {
  const int64_t n = party.size();
  const int64_t me = party.rank();
  TESSERA_ASSIGN_OR_RETURN(const VectorView slots,
                           Take(party, n * count, output.element));
  const int64_t half = n / 2 * count;
  TESSERA_ASSIGN_OR_RETURN(const VectorView out,
                           Take(party, half, output.element));
  TESSERA_ASSIGN_OR_RETURN(const VectorView in,
                           Take(party, half, output.element));
  // Slot j is the block for rank me + j, and in the end that from rank me - j.
  const int64_t tail = (n - me) * count;
  CopyBytes(slots.data, input.at(me * count), tail * slots.element);
  CopyBytes(slots.at(tail), input.data, me * count * slots.element);
  const int64_t steps = CeilLog2(n);
  for (int64_t k = 0; k < steps; ++k) {
    party.Step(k + 1, steps);
    const int64_t far = int64_t{1} << k;
    const int64_t moving = BruckMovingSlots(n, k) * count;
    MoveSlots(Packing::kPack, n, k, count, slots, out);
    TESSERA_RETURN_IF_ERROR(party.Exchange((me + far) % n, out.Range(0, moving),
                                           (me + n - far) % n,
                                           in.Range(0, moving)));
    MoveSlots(Packing::kUnpack, n, k, count, slots, in);
  }
  party.Enter(Phase::kCopying);
  for (int64_t slot = 0; slot < n; ++slot) {
    CopyBytes(output.at((me + n - slot) % n * count), slots.at(slot * count),
              count * slots.element);
  }
  return absl::OkStatus();
}

absl::Status DisseminationBarrier(Party party) {
  const int64_t n = party.size();
  const int64_t steps = CeilLog2(n);
  for (int64_t k = 0; k < steps; ++k) {
    party.Step(k + 1, steps);
    const int64_t far = int64_t{1} << k;
    TESSERA_RETURN_IF_ERROR(party.Exchange((party.rank() + far) % n, {},
                                           (party.rank() + n - far) % n, {}));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives
