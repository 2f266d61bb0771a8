// SplitBackward and MergeBackward: a stage's backward as one computation or
// two.
//
//   SplitBackward: 1B0            ->  1I0, 1W0
//   MergeBackward: 1I0, 1W0       ->  1B0
//
// In a pair that runs together the input's gradient takes the backward's place
// and the weights' follows the pair: (0F8;1B0) -> (0F8;1I0), 1W0. MergeBackward
// undoes it. It leaves an I alone whose W is not the next thing that the rank
// does, be it only for a send between them: merge before AddCommunication.
#ifndef TESSERA_PIPELINE_PASSES_SPLIT_BACKWARD_H_
#define TESSERA_PIPELINE_PASSES_SPLIT_BACKWARD_H_

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The schedule with I and W for every B. InvalidArgument, with rank and
// position, where a rank's last action runs together with one after it, or
// three actions run together.
absl::StatusOr<Schedule> SplitBackward(const Schedule& schedule);

// The schedule with B for every I that its W follows at once. Errors as above.
absl::StatusOr<Schedule> MergeBackward(const Schedule& schedule);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_SPLIT_BACKWARD_H_
