// ExecutionPlan: one rank's list of a lowered schedule, with all that can be
// known before it runs.
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
  int32_t position = 0;    // In the schedule's list.
  int32_t local = 0;       // Which of the rank's stages; see ExecutionPlan.
  int32_t peer = kNobody;  // The rank at a message's other end.
  // The tensor that a computation produces or a message transfers is between
  // the stages `boundary` and `boundary` + 1; kNobody if there is none.
  int32_t boundary = kNobody;
  // The rank's stage that takes a computation's result; kNobody if it is sent
  // or there is none.
  int32_t hands_to = kNobody;
};

enum class Passes : uint8_t {
  kBoth,
  // Forwards and their messages, and the gathers that have a forward between
  // them and their reshard. What is left of a schedule that cannot deadlock
  // cannot either: every message keeps its place among those left.
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
  // Indices of the receives from each rank, in their order, which is that in
  // which the peer sends.
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
