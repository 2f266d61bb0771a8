// CombiningExchange: two ranks trade parts of their vectors, and each combines
// what comes in with what it has, chunk by chunk while the next one travels.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       CombiningExchange exchange,
//       CombiningExchange::Create(party, largest, reducer, chunk));
//   TESSERA_RETURN_IF_ERROR(exchange.Run(party, trade, reducer.partial));
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_COMBINING_EXCHANGE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_COMBINING_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

struct Trade {
  int64_t peer = 0;
  // What goes out: nothing is sent where sends is false.
  bool sends = true;
  ConstVectorView outgoing;
  int64_t outgoing_count = 0;
  // What comes in is combined with `own` into `result`, which may be `own`, and
  // may be `outgoing` where the counts are equal. Nothing is received where
  // receives is false.
  bool receives = true;
  int64_t incoming_count = 0;
  ConstVectorView own;
  VectorView result;
  bool own_is_lower = true;  // Own comes before what comes in.
};

class CombiningExchange {
 public:
  // For trades of up to `largest` elements in chunks of `chunk` elements.
  static absl::StatusOr<CombiningExchange> Create(Party& party, int64_t largest,
                                                  int64_t element,
                                                  int64_t chunk);

  absl::Status Run(Party& party, const Trade& trade,
                   const Combination& combination);

 private:
  absl::Status Post(Party& party, const Trade& trade, const Chunks& in,
                    int64_t k);
  void CombineChunk(const Trade& trade, const Combination& combination,
                    const Chunks& in, int64_t k) const;

  int64_t chunk_ = 1;
  VectorView landing_[2];
  Request receives_[2];
  std::span<Request> sends_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_COMBINING_EXCHANGE_H_
