#include "collectives/algorithms/combining_exchange.h"

#include "base/status_macros.h"
#include "collectives/algorithms/reducer.h"

namespace tessera::collectives {

absl::StatusOr<CombiningExchange> CombiningExchange::Create(Party& party,
                                                            int64_t largest,
                                                            int64_t element,
                                                            int64_t chunk) {
  const Chunks chunks(largest, chunk);
  CombiningExchange exchange;
  exchange.chunk_ = chunk;
  TESSERA_ASSIGN_OR_RETURN(exchange.sends_,
                           party.ScratchOf<Request>(chunks.count()));
  for (int64_t k = 0; k < 2; ++k) {
    const int64_t bytes = k < chunks.count() ? chunks.longest() * element : 0;
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                             party.Scratch(bytes));
    exchange.landing_[k] = {memory.data(), element};
  }
  return exchange;
}

absl::Status CombiningExchange::Post(Party& party, const Trade& trade,
                                     const Chunks& in, int64_t k) {
  if (!trade.receives || k >= in.count()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      receives_[k % 2],
      party.Receive(trade.peer, landing_[k % 2].Range(0, in.length(k))));
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

absl::Status CombiningExchange::Run(Party& party, const Trade& trade,
                                    const Combination& combination) {
  const Chunks out(trade.outgoing_count, chunk_);
  const Chunks in(trade.incoming_count, chunk_);
  const bool aliased = trade.outgoing.data == trade.result.data;
  TESSERA_RETURN_IF_ERROR(Post(party, trade, in, 0));
  TESSERA_RETURN_IF_ERROR(Post(party, trade, in, 1));
  const int64_t sending = trade.sends ? out.count() : 0;
  for (int64_t k = 0; k < sending; ++k) {
    TESSERA_ASSIGN_OR_RETURN(
        sends_[static_cast<size_t>(k)],
        party.Send(trade.peer,
                   trade.outgoing.Range(out.first(k), out.length(k))));
  }
  for (int64_t k = 0; trade.receives && k < in.count(); ++k) {
    TESSERA_RETURN_IF_ERROR(party.Finish(receives_[k % 2]));
    if (aliased && k < sending) {
      TESSERA_RETURN_IF_ERROR(party.Finish(sends_[static_cast<size_t>(k)]));
    }
    party.Enter(Phase::kReducing);
    CombineChunk(trade, combination, in, k);
    TESSERA_RETURN_IF_ERROR(Post(party, trade, in, k + 2));
  }
  return party.Finish(sends_.first(static_cast<size_t>(sending)));
}

}  // namespace tessera::collectives
