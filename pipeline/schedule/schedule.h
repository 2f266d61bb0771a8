// Schedule: what every rank of a pipeline does, in which order.
//
//   Schedule schedule;
//   schedule.name = "gpipe";
//   schedule.map = *StageMap::Linear(2);
//   schedule.microbatches = 1;
//   schedule.ranks = {{{ActionKind::kForward, 0, 0}, ...}, {...}};
//   WriteCsv(schedule);                           // "0F0,..."
//
// A value without behaviour: generators make it (pipeline/generate), passes
// lower it (pipeline/passes), Validate proves it, Simulate prices it, Executor
// runs it, and it is drawn.
#ifndef TESSERA_PIPELINE_SCHEDULE_SCHEDULE_H_
#define TESSERA_PIPELINE_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/action.h"
#include "pipeline/schedule/stage_map.h"

namespace tessera::pipeline {

struct Schedule {
  std::string name;
  StageMap map;
  int32_t microbatches = 0;
  // What each rank does, by rank: map.ranks() lists.
  std::vector<std::vector<Action>> ranks;

  // Of a two-way map the first half of the micro-batches (the larger one where
  // they are odd) enters at the front, the other at the back.
  bool EntersAtFront(int32_t microbatch) const {
    return !map.two_way() || microbatch < microbatches - microbatches / 2;
  }
  // The rank that works on the stage for the micro-batch.
  int32_t RankOf(int32_t stage, int32_t microbatch) const {
    return EntersAtFront(microbatch) ? map.RankOf(stage)
                                     : map.RankFromBack(stage);
  }

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SCHEDULE_SCHEDULE_H_
