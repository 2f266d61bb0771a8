// What hierarchical algorithms do among ranks that are equally near: the one of
// the flat algorithms that suits the size (kSmallMessageBytes).
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_FLAT_CHOICE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_FLAT_CHOICE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// As the functions of ring.h, trees.h, ... that they choose from. Number 0 is
// the root of those that have one.
absl::Status FlatAllReduce(const Party& party, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk);
absl::Status FlatReduce(const Party& party, int64_t count,
                        ConstVectorView input, VectorView output,
                        const Reducer& reducer, int64_t chunk);
absl::Status FlatReduceScatter(const Party& party, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk);
absl::Status FlatAllGather(const Party& party, const Blocks& blocks,
                           VectorView all, int64_t chunk);
absl::Status FlatBroadcast(const Party& party, int64_t count, VectorView data,
                           int64_t chunk);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_FLAT_CHOICE_H_
