#include "collectives/algorithms/folding.h"

#include "base/status_macros.h"

namespace tessera::collectives {

absl::Status FoldIn(Party& party, const Fold& fold, int64_t count,
                    VectorView result, const Combination& combination,
                    CombiningExchange& exchange, ConstVectorView& current) {
  if (!fold.Paired(party.rank())) return absl::OkStatus();
  const bool gives = fold.FoldsIn(party.rank());
  Trade trade;
  trade.peer = Fold::Partner(party.rank());
  trade.sends = gives;
  trade.receives = !gives;
  (gives ? trade.outgoing_count : trade.incoming_count) = count;
  if (gives) {
    trade.outgoing = current;
  } else {
    trade.own = current;
    trade.result = result;
    current = result;
  }
  return exchange.Run(party, trade, combination);
}

absl::Status FoldOut(Party& party, const Fold& fold, VectorView all,
                     int64_t count) {
  if (!fold.Paired(party.rank())) return absl::OkStatus();
  const int64_t partner = Fold::Partner(party.rank());
  return fold.FoldsIn(party.rank())
             ? party.ReceiveNow(partner, all.Range(0, count))
             : party.SendNow(partner, all.Range(0, count));
}

absl::Status DoubleBlocks(Party& party, const Fold& fold, const Blocks& blocks,
                          VectorView all) {
  const int64_t me = fold.VirtualOf(party.rank());
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    party.Step(1 + FloorLog2(width), FloorLog2(fold.power()));
    const int64_t mine = me / width * width;
    const int64_t theirs = mine ^ width;
    const int64_t peer = fold.RankOf(me ^ width);
    TESSERA_RETURN_IF_ERROR(
        party.Exchange(peer, all.Range(blocks, mine, mine + width), peer,
                       all.Range(blocks, theirs, theirs + width)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives
