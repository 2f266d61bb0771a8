#include "collectives/algorithms/doubling.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {
namespace {

struct Trade {
  int64_t peer = 0;
  // The data to send; nothing is sent if `sends` is false.
  bool sends = true;
  ConstVectorView outgoing;
  int64_t outgoing_count = 0;
  // The received data is combined with `own` into `result`, which may be `own`,
  // and may be `outgoing` if the counts are equal. Nothing is received if
  // `receives` is false.
  bool receives = true;
  int64_t incoming_count = 0;
  ConstVectorView own;
  VectorView result;
  bool own_is_lower = true;  // `own` is the left operand.
};

class CombiningExchange {
 public:
  // For exchanges of up to `largest` elements in chunks of `chunk` elements.
  static absl::StatusOr<CombiningExchange> Create(RankGroup& group,
                                                  int64_t largest,
                                                  int64_t element,
                                                  int64_t chunk);

  absl::Status Run(RankGroup& group, const Trade& trade,
                   const Combination& combination);

 private:
  absl::Status Post(RankGroup& group, const Trade& trade, const Chunks& in,
                    int64_t k);
  void CombineChunk(const Trade& trade, const Combination& combination,
                    const Chunks& in, int64_t k) const;

  int64_t chunk_ = 1;
  VectorView landing_[2];
  Request receives_[2];
  std::span<Request> sends_;
};

absl::StatusOr<CombiningExchange> CombiningExchange::Create(RankGroup& group,
                                                            int64_t largest,
                                                            int64_t element,
                                                            int64_t chunk) {
  const Chunks chunks(largest, chunk);
  CombiningExchange exchange;
  exchange.chunk_ = chunk;
  TESSERA_ASSIGN_OR_RETURN(exchange.sends_,
                           group.ScratchOf<Request>(chunks.count()));
  for (int64_t k = 0; k < 2; ++k) {
    const int64_t bytes = k < chunks.count() ? chunks.longest() * element : 0;
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                             group.Scratch(bytes));
    exchange.landing_[k] = {memory.data(), element};
  }
  return exchange;
}

absl::Status CombiningExchange::Post(RankGroup& group, const Trade& trade,
                                     const Chunks& in, int64_t k) {
  if (!trade.receives || k >= in.count()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      receives_[k % 2],
      group.Receive(trade.peer, landing_[k % 2].Range(0, in.length(k))));
  return absl::OkStatus();
}

void CombiningExchange::CombineChunk(const Trade& trade,
                                     const Combination& combination,
                                     const Chunks& in, int64_t k) const {
  const std::byte* own = trade.own.at(in.first(k));
  const std::byte* other = landing_[k % 2].data;
  CombineTwo(combination, trade.own_is_lower ? own : other,
             trade.own_is_lower ? other : own, trade.result.at(in.first(k)),
             in.length(k));
}

absl::Status CombiningExchange::Run(RankGroup& group, const Trade& trade,
                                    const Combination& combination) {
  const Chunks out(trade.outgoing_count, chunk_);
  const Chunks in(trade.incoming_count, chunk_);
  const bool aliased = trade.outgoing.data == trade.result.data;
  TESSERA_RETURN_IF_ERROR(Post(group, trade, in, 0));
  TESSERA_RETURN_IF_ERROR(Post(group, trade, in, 1));
  const int64_t sending = trade.sends ? out.count() : 0;
  for (int64_t k = 0; k < sending; ++k) {
    TESSERA_ASSIGN_OR_RETURN(
        sends_[static_cast<size_t>(k)],
        group.Send(trade.peer,
                   trade.outgoing.Range(out.first(k), out.length(k))));
  }
  for (int64_t k = 0; trade.receives && k < in.count(); ++k) {
    TESSERA_RETURN_IF_ERROR(group.Finish(receives_[k % 2]));
    if (aliased && k < sending) {
      TESSERA_RETURN_IF_ERROR(group.Finish(sends_[static_cast<size_t>(k)]));
    }
    group.Enter(Phase::kReducing);
    CombineChunk(trade, combination, in, k);
    TESSERA_RETURN_IF_ERROR(Post(group, trade, in, k + 2));
  }
  return group.Finish(sends_.first(static_cast<size_t>(sending)));
}

// Ranks that fold in send `count` elements of `current`; their partners combine
// them with their own into `result`. Other ranks do nothing. Sets `current` to
// this rank's vector afterwards.
absl::Status FoldIn(RankGroup& group, const Fold& fold, int64_t count,
                    VectorView result, const Combination& combination,
                    CombiningExchange& exchange, ConstVectorView& current) {
  if (!fold.Paired(group.rank())) return absl::OkStatus();
  const bool gives = fold.FoldsIn(group.rank());
  Trade trade;
  trade.peer = Fold::Partner(group.rank());
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
  return exchange.Run(group, trade, combination);
}

// Sends all `count` elements back to the ranks that folded in.
absl::Status FoldOut(RankGroup& group, const Fold& fold, VectorView all,
                     int64_t count) {
  if (!fold.Paired(group.rank())) return absl::OkStatus();
  const int64_t partner = Fold::Partner(group.rank());
  return fold.FoldsIn(group.rank())
             ? group.ReceiveNow(partner, all.Range(0, count))
             : group.SendNow(partner, all.Range(0, count));
}

// Recursive doubling of the virtual ranks' blocks of `all`.
absl::Status DoubleBlocks(RankGroup& group, const Fold& fold,
                          const Blocks& blocks, VectorView all) {
  const int64_t me = fold.VirtualOf(group.rank());
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    group.Step(1 + FloorLog2(width), FloorLog2(fold.power()));
    const int64_t mine = me / width * width;
    const int64_t theirs = mine ^ width;
    const int64_t peer = fold.RankOf(me ^ width);
    TESSERA_RETURN_IF_ERROR(
        group.Exchange(peer, all.Range(blocks, mine, mine + width), peer,
                       all.Range(blocks, theirs, theirs + width)));
  }
  return absl::OkStatus();
}

absl::Status DoubleSums(RankGroup& group, const Fold& fold, int64_t count,
                        ConstVectorView current, VectorView output,
                        const Reducer& reducer, CombiningExchange& exchange) {
  const int64_t me = fold.VirtualOf(group.rank());
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    group.Step(1 + FloorLog2(width), FloorLog2(fold.power()));
    Trade trade;
    trade.peer = fold.RankOf(me ^ width);
    trade.outgoing = trade.own = current;
    trade.outgoing_count = trade.incoming_count = count;
    trade.result = output;
    trade.own_is_lower = (me & width) == 0;
    TESSERA_RETURN_IF_ERROR(
        exchange.Run(group, trade, reducer.At(2 * width == fold.power())));
    current = output;
  }
  return absl::OkStatus();
}

// Stores the reduction of virtual block `me` at its offset in `result`; the
// other blocks of `result` are undefined afterwards.
absl::Status HalveSums(RankGroup& group, const Fold& fold, const Blocks& blocks,
                       ConstVectorView current, VectorView result,
                       const Reducer& reducer, CombiningExchange& exchange) {
  const int64_t me = fold.VirtualOf(group.rank());
  for (int64_t width = fold.power() / 2; width > 0; width /= 2) {
    group.Step(FloorLog2(fold.power()) - FloorLog2(width),
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
    TESSERA_RETURN_IF_ERROR(exchange.Run(group, trade, reducer.At(width == 1)));
    current = result;
  }
  return absl::OkStatus();
}

// Folds in, then halves.
absl::Status HalveFolded(RankGroup& group, const Fold& fold,
                         const Blocks& blocks, ConstVectorView input,
                         VectorView result, const Reducer& reducer,
                         int64_t chunk) {
  TESSERA_ASSIGN_OR_RETURN(CombiningExchange exchange,
                           CombiningExchange::Create(group, blocks.total(),
                                                     reducer.element(), chunk));
  TESSERA_RETURN_IF_ERROR(FoldIn(group, fold, blocks.total(), result,
                                 reducer.partial, exchange, input));
  if (fold.FoldsIn(group.rank())) return absl::OkStatus();
  return HalveSums(group, fold, blocks, input, result, reducer, exchange);
}

// Gathers the blocks of virtual ranks on virtual rank 0.
absl::Status GatherBlocks(RankGroup& group, const Fold& fold,
                          const Blocks& blocks, VectorView all) {
  const int64_t me = fold.VirtualOf(group.rank());
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    group.Step(1 + FloorLog2(width), FloorLog2(fold.power()));
    if ((me & width) != 0) {
      return group.SendNow(fold.RankOf(me - width),
                           all.Range(blocks, me, me + width));
    }
    TESSERA_RETURN_IF_ERROR(
        group.ReceiveNow(fold.RankOf(me + width),
                         all.Range(blocks, me + width, me + 2 * width)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DoublingAllReduce(RankGroup group, int64_t count,
                               ConstVectorView input, VectorView output,
                               const Reducer& reducer, int64_t chunk) {
  if (group.size() == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Fold fold(group.size());
  TESSERA_ASSIGN_OR_RETURN(
      CombiningExchange exchange,
      CombiningExchange::Create(group, count, reducer.element(), chunk));
  TESSERA_RETURN_IF_ERROR(
      FoldIn(group, fold, count, output, reducer.partial, exchange, input));
  if (!fold.FoldsIn(group.rank())) {
    TESSERA_RETURN_IF_ERROR(
        DoubleSums(group, fold, count, input, output, reducer, exchange));
  }
  return FoldOut(group, fold, output, count);
}

absl::Status DoublingAllGather(RankGroup group, const Blocks& blocks,
                               VectorView all) {
  const Fold fold(group.size());
  const int64_t me = group.rank();
  if (fold.Paired(me)) {
    const int64_t other = Fold::Partner(me);
    TESSERA_RETURN_IF_ERROR(
        fold.FoldsIn(me)
            ? group.SendNow(other, all.Range(blocks, me, me + 1))
            : group.ReceiveNow(other, all.Range(blocks, other, other + 1)));
  }
  if (!fold.FoldsIn(me)) {
    TESSERA_RETURN_IF_ERROR(DoubleBlocks(group, fold, fold.Merge(blocks), all));
  }
  return FoldOut(group, fold, all, blocks.total());
}

absl::Status HalvingReduceScatter(RankGroup group, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Reducer& reducer, int64_t chunk) {
  const int64_t me = group.rank();
  if (group.size() == 1) {
    CombineOne(reducer.last, input.data, own.data, blocks.total());
    return absl::OkStatus();
  }
  const Fold fold(group.size());
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           group.Scratch(blocks.total() * reducer.element()));
  const VectorView work(memory.data(), reducer.element());
  TESSERA_RETURN_IF_ERROR(HalveFolded(group, fold, fold.Merge(blocks), input,
                                      work, reducer, chunk));
  const int64_t partner = Fold::Partner(me);
  if (fold.FoldsIn(me)) {
    return group.ReceiveNow(partner, own.Range(0, blocks.count(me)));
  }
  if (fold.Paired(me)) {
    TESSERA_RETURN_IF_ERROR(
        group.SendNow(partner, work.Range(blocks, partner, partner + 1)));
  }
  group.Enter(Phase::kCopying);
  CopyBytes(own.data, work.at(blocks.offset(me)),
            blocks.count(me) * reducer.element());
  return absl::OkStatus();
}

absl::Status HalvingDoublingAllReduce(RankGroup group, int64_t count,
                                      ConstVectorView input, VectorView output,
                                      const Reducer& reducer, int64_t chunk) {
  if (group.size() == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Fold fold(group.size());
  const Blocks blocks = Blocks::Balanced(fold.power(), count);
  TESSERA_RETURN_IF_ERROR(
      HalveFolded(group, fold, blocks, input, output, reducer, chunk));
  if (!fold.FoldsIn(group.rank())) {
    TESSERA_RETURN_IF_ERROR(DoubleBlocks(group, fold, blocks, output));
  }
  return FoldOut(group, fold, output, count);
}

absl::Status HalvingReduce(RankGroup group, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk) {
  if (group.size() == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Fold fold(group.size());
  const Blocks blocks = Blocks::Balanced(fold.power(), count);
  if (group.rank() != 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                             group.Scratch(count * reducer.element()));
    output = {memory.data(), reducer.element()};
  }
  TESSERA_RETURN_IF_ERROR(
      HalveFolded(group, fold, blocks, input, output, reducer, chunk));
  if (fold.FoldsIn(group.rank())) return absl::OkStatus();
  return GatherBlocks(group, fold, blocks, output);
}

}  // namespace tessera::collectives
