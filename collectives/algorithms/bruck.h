// Bruck's algorithms: CeilLog2(n) steps for any n, for what is small. Source:
// Bruck et al., IEEE TPDS 8(11), 1997.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_BRUCK_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_BRUCK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/vector_view.h"
#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// Block party.rank() of `all` is there; the others arrive. Takes scratch of the
// size of all blocks, and copies them once.
absl::Status BruckAllGather(Party party, const Blocks& blocks, VectorView all);

// Blocks of `count` elements, one from and for each rank. `output` may be
// `input`. Takes scratch of twice the message.
absl::Status BruckAllToAll(Party party, int64_t count, ConstVectorView input,
                           VectorView output);

// Dissemination: CeilLog2(n) steps of empty messages.
absl::Status DisseminationBarrier(Party party);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_BRUCK_H_
