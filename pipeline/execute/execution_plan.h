// ExecutionPlan: the actions of one rank of a lowered schedule, with everything
// about them that is known before they run.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       ExecutionPlan plan, ExecutionPlan::Of(schedule, rank, Passes::kBoth));
//   for (const PlannedAction& action : plan.actions()) ...
#ifndef TESSERA_PIPELINE_EXECUTE_EXECUTION_PLAN_H_
#define TESSERA_PIPELINE_EXECUTE_EXECUTION_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

inline constexpr int32_t kNobody = -1;

struct PlannedAction {
  Action action;
  int32_t position = 0;    // Index in the rank's list of the schedule.
  int32_t local = 0;       // Index of the stage in ExecutionPlan::stages().
  int32_t peer = kNobody;  // The rank at a message's other end.
  // The tensor that a computation produces or a message transfers is between
  // the stages `boundary` and `boundary` + 1; kNobody if there is none.
  int32_t boundary = kNobody;
  // The stage of this rank that consumes a computation's result; kNobody if the
  // result is sent to another rank or does not exist.
  int32_t hands_to = kNobody;
};

enum class Passes : uint8_t {
  kBoth,
  // Only the forwards, their messages, and each gather that has a forward
  // before its reshard. If the schedule cannot deadlock, neither can this part
  // of it: the remaining messages keep their order.
  kForward,
};

class ExecutionPlan {
 public:
  // The plan of a rank. Precondition: Validate accepts the schedule.
  static ExecutionPlan Of(const Schedule& schedule, int32_t rank,
                          Passes passes);

  const std::vector<PlannedAction>& actions() const { return actions_; }
  // The stages of the rank, ascending.
  const std::vector<int32_t>& stages() const { return stages_; }
  // By peer, the indices of the receives from it, in list order, which is also
  // the order in which the peer sends.
  const std::vector<std::vector<size_t>>& receives() const { return receives_; }
  int32_t rank() const { return rank_; }
  Passes passes() const { return passes_; }

  // "rank 1, action 7 (1RECV_F3): stage 1, micro-batch 3, from rank 0".
  std::string Describe(const PlannedAction& action) const;

 private:
  int32_t LocalOf(int32_t stage) const;
  PlannedAction PlanOf(const Schedule& schedule, int32_t position) const;

  int32_t rank_ = 0;
  Passes passes_ = Passes::kBoth;
  std::vector<int32_t> stages_;
  std::vector<PlannedAction> actions_;
  std::vector<std::vector<size_t>> receives_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_EXECUTION_PLAN_H_
