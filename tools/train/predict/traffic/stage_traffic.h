// AddPasses: what the layers of a stage send in their passes, along the tensor
// and the context axis.
//
// Of a micro-batch and layer, with x the bytes of all its tokens on the rank:
//
//   tp            forward             whole backward      I           W
//   plain         2 all_reduce x      2 all_reduce        the same    none
//   sequence      2 all_gather,       4 all_gather,       2 and 2     4
//   parallel      2 reduce_scatter    2 reduce_scatter all_gather
//
// and for a layer that is computed again 1 all_reduce, or 2 all_gather and 1
// reduce_scatter. cp: keys and values go round n ranks in n - 1 messages, in
// the backward again, and their gradients in n.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_TRAFFIC_STAGE_TRAFFIC_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_TRAFFIC_STAGE_TRAFFIC_H_

#include <cstdint>

#include "pipeline/schedule/action.h"
#include "tools/train/predict/stage_shapes.h"
#include "tools/train/predict/traffic/rank_traffic.h"

namespace tessera::train {

// Of `times` passes of a kind that computes.
void AddPasses(const StageShapes& shapes, pipeline::ActionKind kind,
               int64_t times, RankTraffic& traffic);

// Once a step: gradients of weights that several tensor ranks hold.
void AddSharedGradients(const StageShapes& shapes, int64_t gradient_width,
                        RankTraffic& traffic);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_TRAFFIC_STAGE_TRAFFIC_H_
