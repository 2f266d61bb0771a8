// One micro-batch at a time: the order that needs least memory, on any map.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_SEQUENTIAL_H_
#define TESSERA_PIPELINE_SYNTHESIZE_SEQUENTIAL_H_

#include <cstdint>

#include "pipeline/synthesize/model.h"
#include "pipeline/synthesize/order.h"

namespace tessera::pipeline::synthesis {

// Each micro-batch's forwards, then for each stage from the last its
// backward-input and backward-weight. A rank has to do all its forwards of a
// micro-batch before the first backward-input, so that where no action but a
// forward adds memory no order needs less.
Order SequentialOrder(const Model& model);

// What the rank with the most needs for that.
struct MemoryNeed {
  int64_t rank = 0;
  int64_t bytes = 0;
};
MemoryNeed LeastMemory(const Model& model);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_SEQUENTIAL_H_
