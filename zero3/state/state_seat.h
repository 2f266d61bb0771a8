// StateSeat: a rank's position in a layout, and the device of its state.
#ifndef TESSERA_ZERO3_STATE_STATE_SEAT_H_
#define TESSERA_ZERO3_STATE_STATE_SEAT_H_

#include "topology/rank.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

struct StateSeat {
  StateLayout layout;
  topology::Rank rank;
  StateDevice device;

  const ModelParameters& model() const { return layout.model(); }
  Extent OwnExtent(ParameterId id) const { return layout.ExtentOf(rank, id); }
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_SEAT_H_
