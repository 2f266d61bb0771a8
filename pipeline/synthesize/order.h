// Order: what each rank does, in the terms of a Model.
//
//   Order order = OrderOf(model, *Generate("zb_h1", shape));
//   Schedule schedule = ScheduleOf(model, map, m, order, "auto");
#ifndef TESSERA_PIPELINE_SYNTHESIZE_ORDER_H_
#define TESSERA_PIPELINE_SYNTHESIZE_ORDER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

enum class Pass : uint8_t { kForward, kInput, kWeight };

struct Op {
  int32_t lane = 0;
  Pass pass = Pass::kForward;

  friend bool operator==(const Op&, const Op&) = default;
};

// By rank.
using Order = std::vector<std::vector<Op>>;

// The order of a valid schedule of computations on the model's map. Every
// backward is split, and a lane's micro-batches take their turns.
Order OrderOf(const Model& model, const Schedule& schedule);

// The schedule of an order.
Schedule ScheduleOf(const Model& model, const StageMap& map,
                    int64_t microbatches, const Order& order,
                    std::string_view name);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_ORDER_H_
