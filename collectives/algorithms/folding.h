// Folding in and out: how ranks past a power of two hand their data over and
// get the result back.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_FOLDING_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_FOLDING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/combining_exchange.h"
#include "collectives/algorithms/fold.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

// Ranks that fold in send `count` elements of `input`; their partners combine
// them with their own into `result`. Others do nothing. `current` becomes where
// the rank's vector now is.
absl::Status FoldIn(Party& party, const Fold& fold, int64_t count,
                    VectorView result, const Combination& combination,
                    CombiningExchange& exchange, ConstVectorView& current);

// Partners send all `count` elements to the ranks that folded in.
absl::Status FoldOut(Party& party, const Fold& fold, VectorView all,
                     int64_t count);

// Virtual ranks, each with its own block of `all`, double what they have until
// they have everything.
absl::Status DoubleBlocks(Party& party, const Fold& fold, const Blocks& blocks,
                          VectorView all);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_FOLDING_H_
