// StepActivity: what was measured of a rank in one step, and StepAccount, the
// one thing that it did at each moment.
//
//   const StepAccount account = AccountOf(activity);
//   account.shares().bubble;
//   Length(account.of(Doing::kCommunication));
//
// README.md says what counts as what, and why.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STEP_ACTIVITY_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STEP_ACTIVITY_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pipeline/schedule/action.h"
#include "tools/train/loop/collective_log.h"
#include "tools/train/loop/time_shares.h"
#include "tools/train/report/spans.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/report/timed_ops.h"

namespace tessera::train {

// A forward or backward pass of the rank, or a message.
struct ActivePass {
  pipeline::Action action = {};
  Span span = {};
};

// A message, or the end of the step, that the rank waited for.
struct MessageWait {
  pipeline::Action action = {};
  Span span = {};
  // When the peer had computed what it sends; at the end or before the begin
  // where the message is the rank's own to send.
  int64_t computed_ns = 0;
};

struct StepActivity {
  int64_t step = 0;
  Span whole = {};
  Span update =
      {};  // Of the optimizer's part, gradients and parameters included.
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
  // Gathers of weights and reductions of gradients, and those moments of them
  // in which the rank computed.
  int64_t state_traffic_ns = 0;
  int64_t state_hidden_ns = 0;
  // By Doing. Together all moments of `whole`, each once.
  std::array<Spans, kAllDoings.size()> spans = {};

  const Spans& of(Doing doing) const {
    return spans[static_cast<size_t>(doing)];
  }
  TimeShares shares() const;
};

StepAccount AccountOf(const StepActivity& activity);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STEP_ACTIVITY_H_
