// StepActivity: the measured activity of a rank in one step. StepAccount
// assigns each moment of the step to one kind of activity.
//
//   const StepAccount account = AccountOf(activity);
//   account.shares().bubble;
//   Length(account.of(Doing::kCommunication));
//
// loop/README.md describes the assignment.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STEP_ACTIVITY_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STEP_ACTIVITY_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/report/run_result.h"
#include "tools/train/report/spans.h"
#include "tools/train/report/tier_log.h"

namespace tessera::train {

// The times of operations of tensor_parallel::Ops.
struct OpsTime {
  // Operations less than 300 ns apart are one span: reading the clock takes
  // part of that time.
  Spans spans = {};
  int64_t products_ns = 0;  // In Gemm, Attend and AttendGradient.
};

// A forward or backward pass of the rank.
struct ActivePass {
  pipeline::Action action = {};
  Span span = {};
};

// A message, or the end of the step, that the rank waited for.
struct MessageWait {
  pipeline::Action action = {};
  Span span = {};
  // When the peer had computed the tensor; 0 if this rank sends it.
  int64_t computed_ns = 0;
};

struct StepActivity {
  int64_t step = 0;
  Span whole = {};
  Span update = {};     // ShardedState::Step.
  int64_t data_ns = 0;  // StepTimes::data_ns.
  OpsTime ops = {};
  std::vector<ActivePass> passes = {};
  std::vector<MessageWait> messages = {};
  // From the rank's last pass or message to the last of any pipeline rank.
  Span tail = {};
  std::vector<LoggedCollective> collectives = {};
  TierTime tiers = {};
};

enum class Doing { kCompute, kOptimizer, kCommunication, kBubble, kOffload };

inline constexpr std::array kAllDoings = {Doing::kCompute, Doing::kOptimizer,
                                          Doing::kCommunication, Doing::kBubble,
                                          Doing::kOffload};

// "compute", "optimizer", ...
constexpr std::string_view DoingName(Doing doing) {
  constexpr std::array<std::string_view, kAllDoings.size()> kNames = {
      "compute", "optimizer", "communication", "bubble", "offload"};
  return kNames[static_cast<size_t>(doing)];
}

struct StepAccount {
  Span whole = {};
  int64_t products_ns = 0;
  int64_t data_ns = 0;
  // The time with gathers of weights or reductions of gradients under way, and
  // the part of it in which the rank computed.
  int64_t state_traffic_ns = 0;
  int64_t state_hidden_ns = 0;
  // By Doing. A partition of `whole`.
  std::array<Spans, kAllDoings.size()> spans = {};

  const Spans& of(Doing doing) const {
    return spans[static_cast<size_t>(doing)];
  }
  TimeShares shares() const;
};

StepAccount AccountOf(const StepActivity& activity);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STEP_ACTIVITY_H_
