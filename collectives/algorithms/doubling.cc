#include "collectives/algorithms/doubling.h"

#include "base/status_macros.h"
#include "collectives/algorithms/folding.h"

namespace tessera::collectives {
namespace {

absl::Status DoubleSums(Party& party, const Fold& fold, int64_t count,
                        ConstVectorView current, VectorView output,
                        const Reducer& reducer, CombiningExchange& exchange) {
  const int64_t me = fold.VirtualOf(party.rank());
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    party.Step(1 + FloorLog2(width), FloorLog2(fold.power()));
    Trade trade;
    trade.peer = fold.RankOf(me ^ width);
    trade.outgoing = trade.own = current;
    trade.outgoing_count = trade.incoming_count = count;
    trade.result = output;
    trade.own_is_lower = (me & width) == 0;
    TESSERA_RETURN_IF_ERROR(
        exchange.Run(party, trade, reducer.At(2 * width == fold.power())));
    current = output;
  }
  return absl::OkStatus();
}

// Leaves the sum of virtual block `me` in `result`, which has all blocks; the
// rest of it is undefined afterwards.
absl::Status HalveSums(Party& party, const Fold& fold, const Blocks& blocks,
                       ConstVectorView current, VectorView result,
                       const Reducer& reducer, CombiningExchange& exchange) {
  const int64_t me = fold.VirtualOf(party.rank());
  for (int64_t width = fold.power() / 2; width > 0; width /= 2) {
    party.Step(FloorLog2(fold.power()) - FloorLog2(width),
               FloorLog2(fold.power()));
    const int64_t keep = me / width * width;
    const int64_t give = keep ^ width;
    Trade trade;
    trade.peer = fold.RankOf(me ^ width);
    trade.outgoing = current.From(blocks.offset(give));
    trade.outgoing_count = blocks.offset(give + width) - blocks.offset(give);
    trade.own = current.From(blocks.offset(keep));
    trade.incoming_count = blocks.offset(keep + width) - blocks.offset(keep);
    trade.result = result.From(blocks.offset(keep));
    trade.own_is_lower = keep < give;
    TESSERA_RETURN_IF_ERROR(exchange.Run(party, trade, reducer.At(width == 1)));
    current = result;
  }
  return absl::OkStatus();
}

// Folds in, then halves.
absl::Status HalveFolded(Party& party, const Fold& fold, const Blocks& blocks,
                         ConstVectorView input, VectorView result,
                         const Reducer& reducer, int64_t chunk) {
  TESSERA_ASSIGN_OR_RETURN(CombiningExchange exchange,
                           CombiningExchange::Create(party, blocks.total(),
                                                     reducer.element(), chunk));
  TESSERA_RETURN_IF_ERROR(FoldIn(party, fold, blocks.total(), result,
                                 reducer.partial, exchange, input));
  if (fold.FoldsIn(party.rank())) return absl::OkStatus();
  return HalveSums(party, fold, blocks, input, result, reducer, exchange);
}

// Blocks of virtual ranks to virtual rank 0.
absl::Status GatherBlocks(Party& party, const Fold& fold, const Blocks& blocks,
                          VectorView all) {
  const int64_t me = fold.VirtualOf(party.rank());
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    party.Step(1 + FloorLog2(width), FloorLog2(fold.power()));
    if ((me & width) != 0) {
      return party.SendNow(fold.RankOf(me - width),
                           all.Range(blocks, me, me + width));
    }
    TESSERA_RETURN_IF_ERROR(
        party.ReceiveNow(fold.RankOf(me + width),
                         all.Range(blocks, me + width, me + 2 * width)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DoublingAllReduce(Party party, int64_t count,
                               ConstVectorView input, VectorView output,
                               const Reducer& reducer, int64_t chunk) {
  if (party.size() == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Fold fold(party.size());
  TESSERA_ASSIGN_OR_RETURN(
      CombiningExchange exchange,
      CombiningExchange::Create(party, count, reducer.element(), chunk));
  TESSERA_RETURN_IF_ERROR(
      FoldIn(party, fold, count, output, reducer.partial, exchange, input));
  if (!fold.FoldsIn(party.rank())) {
    TESSERA_RETURN_IF_ERROR(
        DoubleSums(party, fold, count, input, output, reducer, exchange));
  }
  return FoldOut(party, fold, output, count);
}

absl::Status DoublingAllGather(Party party, const Blocks& blocks,
                               VectorView all) {
  const Fold fold(party.size());
  const int64_t me = party.rank();
  if (fold.Paired(me)) {
    const int64_t other = Fold::Partner(me);
    TESSERA_RETURN_IF_ERROR(
        fold.FoldsIn(me)
            ? party.SendNow(other, all.Range(blocks, me, me + 1))
            : party.ReceiveNow(other, all.Range(blocks, other, other + 1)));
  }
  if (!fold.FoldsIn(me)) {
    TESSERA_RETURN_IF_ERROR(DoubleBlocks(party, fold, fold.Merge(blocks), all));
  }
  return FoldOut(party, fold, all, blocks.total());
}

absl::Status HalvingReduceScatter(Party party, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Reducer& reducer, int64_t chunk) {
  const int64_t me = party.rank();
  if (party.size() == 1) {
    CombineOne(reducer.last, input.data, own.data, blocks.total());
    return absl::OkStatus();
  }
  const Fold fold(party.size());
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           party.Scratch(blocks.total() * reducer.element()));
  const VectorView work(memory.data(), reducer.element());
  TESSERA_RETURN_IF_ERROR(HalveFolded(party, fold, fold.Merge(blocks), input,
                                      work, reducer, chunk));
  const int64_t partner = Fold::Partner(me);
  if (fold.FoldsIn(me)) {
    return party.ReceiveNow(partner, own.Range(0, blocks.count(me)));
  }
  if (fold.Paired(me)) {
    TESSERA_RETURN_IF_ERROR(
        party.SendNow(partner, work.Range(blocks, partner, partner + 1)));
  }
  party.Enter(Phase::kCopying);
  CopyBytes(own.data, work.at(blocks.offset(me)),
            blocks.count(me) * reducer.element());
  return absl::OkStatus();
}

absl::Status HalvingDoublingAllReduce(Party party, int64_t count,
                                      ConstVectorView input, VectorView output,
                                      const Reducer& reducer, int64_t chunk) {
  if (party.size() == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Fold fold(party.size());
  const Blocks blocks = Blocks::Balanced(fold.power(), count);
  TESSERA_RETURN_IF_ERROR(
      HalveFolded(party, fold, blocks, input, output, reducer, chunk));
  if (!fold.FoldsIn(party.rank())) {
    TESSERA_RETURN_IF_ERROR(DoubleBlocks(party, fold, blocks, output));
  }
  return FoldOut(party, fold, output, count);
}

absl::Status HalvingReduce(Party party, int64_t count, ConstVectorView input,
                           VectorView output, const Reducer& reducer,
                           int64_t chunk) {
  if (party.size() == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Fold fold(party.size());
  const Blocks blocks = Blocks::Balanced(fold.power(), count);
  if (party.rank() != 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                             party.Scratch(count * reducer.element()));
    output = {memory.data(), reducer.element()};
  }
  TESSERA_RETURN_IF_ERROR(
      HalveFolded(party, fold, blocks, input, output, reducer, chunk));
  if (fold.FoldsIn(party.rank())) return absl::OkStatus();
  return GatherBlocks(party, fold, blocks, output);
}

}  // namespace tessera::collectives
