// AddPasses: what the layers of a stage send in one pass, along the tensor and
// the context axis: a formula, since a search prices thousands of stages. The
// test compares it with what a dry run counts.
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
#ifndef TESSERA_TOOLS_PLAN_PASS_TRAFFIC_H_
#define TESSERA_TOOLS_PLAN_PASS_TRAFFIC_H_

#include <cstdint>

#include "pipeline/schedule/action.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/rank_traffic.h"

namespace tessera::plan {

// Of `times` passes of a kind that computes.
void AddPasses(const train::StageShapes& shapes, pipeline::ActionKind kind,
               int64_t times, train::RankTraffic& traffic);

}  // namespace tessera::plan

#endif  // TESSERA_TOOLS_PLAN_PASS_TRAFFIC_H_
