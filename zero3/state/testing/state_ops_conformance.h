// Compares any StateOps with the host's, bit by bit.
//
//   ExpectTheBitsOfTheHost(*queue, *ops);
#ifndef TESSERA_ZERO3_STATE_TESTING_STATE_OPS_CONFORMANCE_H_
#define TESSERA_ZERO3_STATE_TESTING_STATE_OPS_CONFORMANCE_H_

#include "base/device/device.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3::testing {

// Expects that every operation of `ops`, enqueued on `queue`, leaves the same
// bits as HostStateOps in its results and in the bytes around them. Covers
// random numbers of all magnitudes, infinities, NaNs, odd sizes, empty arrays,
// and arrays that are aligned only to their elements.
void ExpectTheBitsOfTheHost(Queue& queue, StateOps& ops);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_STATE_TESTING_STATE_OPS_CONFORMANCE_H_
