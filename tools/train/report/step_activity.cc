#include "tools/train/report/step_activity.h"

#include <algorithm>
#include <utility>

namespace tessera::train {
namespace {

// Assigns each moment of a step once.
class Ledger {
 public:
  explicit Ledger(StepAccount& account)
      : account_(account), rest_({account.whole}) {}

  const Spans& rest() const { return rest_; }

  // Assigns the moments of `spans` that are still free to `doing`.
  void Book(Doing doing, const Spans& spans) {
    Spans& booked = account_.spans[static_cast<size_t>(doing)];
    booked = Either(booked, Both(rest_, spans));
    rest_ = Without(rest_, spans);
  }

 private:
  StepAccount& account_;
  Spans rest_;
};

Spans Bubbles(const StepActivity& activity) {
  std::vector<Span> bubbles = {activity.tail};
  for (const MessageWait& wait : activity.messages) {
    bubbles.push_back(
        {wait.span.begin, std::min(wait.span.end, wait.computed_ns)});
  }
  return Merged(std::move(bubbles));
}

Spans Messages(const StepActivity& activity) {
  std::vector<Span> messages;
  for (const MessageWait& wait : activity.messages) {
    messages.push_back(wait.span);
  }
  return Merged(std::move(messages));
}

Spans Collectives(const StepActivity& activity) {
  std::vector<Span> collectives;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks > 1) collectives.push_back({one.begin_ns, one.end_ns});
  }
  return Merged(std::move(collectives));
}

Spans StateTraffic(const StepActivity& activity) {
  std::vector<Span> traffic;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks > 1 && one.is_state) {
      traffic.push_back({one.begin_ns, one.end_ns});
    }
  }
  return Both(Merged(std::move(traffic)), {activity.whole});
}

// In each segment, the time that the thread slept while operations were under
// way.
Spans TierWaits(const TierTime& tiers, const Spans& rest) {
  const Spans flights = Both(Merged(tiers.in_flight), rest);
  std::vector<Span> waits;
  for (const TierSegment& segment : tiers.segments) {
    if (segment.blocked_ns == 0 || segment.span.size() == 0) continue;
    for (const Span& wait :
         Earliest(Both(flights, {segment.span}), segment.blocked_ns)) {
      waits.push_back(wait);
    }
  }
  return Merged(std::move(waits));
}

}  // namespace

TimeShares StepAccount::shares() const {
  if (whole.size() == 0) return {.compute = 1};
  const auto share = [&](int64_t ns) {
    return static_cast<double>(ns) / static_cast<double>(whole.size());
  };
  TimeShares shares;
  shares.optimizer = share(Length(of(Doing::kOptimizer)));
  shares.compute = share(Length(of(Doing::kCompute))) + shares.optimizer;
  shares.communication = share(Length(of(Doing::kCommunication)));
  shares.bubble = share(Length(of(Doing::kBubble)));
  shares.offload = share(Length(of(Doing::kOffload)));
  shares.products = share(products_ns);
  shares.state_traffic = share(state_traffic_ns);
  shares.state_hidden = share(state_hidden_ns);
  return shares;
}

StepAccount AccountOf(const StepActivity& activity) {
  StepAccount account;
  account.whole = activity.whole;
  account.products_ns = activity.ops.products_ns;
  if (activity.whole.size() == 0) return account;
  const Spans traffic = StateTraffic(activity);
  account.state_traffic_ns = Length(traffic);
  account.state_hidden_ns = Length(Both(traffic, activity.ops.spans));
  Ledger ledger(account);
  ledger.Book(Doing::kCompute, activity.ops.spans);
  ledger.Book(Doing::kOffload, Merged(activity.tiers.calls));
  ledger.Book(Doing::kBubble, Bubbles(activity));
  ledger.Book(Doing::kCommunication, Messages(activity));
  ledger.Book(Doing::kCommunication, Collectives(activity));
  ledger.Book(Doing::kOffload, TierWaits(activity.tiers, ledger.rest()));
  ledger.Book(Doing::kOptimizer, Merged({activity.update}));
  ledger.Book(Doing::kCompute, {activity.whole});
  return account;
}

}  // namespace tessera::train
