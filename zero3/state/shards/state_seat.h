// StateSeat: where a rank sits in a layout, and what its memory counts against.
#ifndef TESSERA_ZERO3_STATE_SHARDS_STATE_SEAT_H_
#define TESSERA_ZERO3_STATE_SHARDS_STATE_SEAT_H_

#include <memory>

#include "offload/tier/accounting.h"
#include "topology/rank.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

struct StateSeat {
  StateLayout layout;
  topology::Rank rank;
  std::shared_ptr<offload::Accounting> device;

  const ModelParameters& model() const { return layout.model(); }
  Extent OwnExtent(ParameterId id) const { return layout.ExtentOf(rank, id); }
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDS_STATE_SEAT_H_
