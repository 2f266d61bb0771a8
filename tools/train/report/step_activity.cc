#include "tools/train/report/step_activity.h"

#include <algorithm>
#include <utility>

namespace tessera::train {
namespace {

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

// Collectives of more than one rank: all, or gathers of weights and reductions
// of gradients.
Spans Collectives(const StepActivity& activity, bool only_state) {
  std::vector<Span> collectives;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks < 2 || (only_state && !one.is_state)) continue;
    collectives.push_back({one.begin_ns, one.end_ns});
  }
  return Merged(std::move(collectives));
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
  shares.data = share(data_ns);
  shares.state_traffic = share(state_traffic_ns);
  shares.state_hidden = share(state_hidden_ns);
  return shares;
}

StepAccount AccountOf(const StepActivity& activity) {
  StepAccount account;
  account.whole = activity.whole;
  account.products_ns = activity.ops.products_ns;
  account.data_ns = activity.data_ns;
  if (activity.whole.size() == 0) return account;
  const Spans traffic =
      Both(Collectives(activity, /*only_state=*/true), {activity.whole});
  account.state_traffic_ns = Length(traffic);
  account.state_hidden_ns = Length(Both(traffic, activity.ops.spans));
  // Each moment counts as the first activity that it is booked for.
  Spans rest = {activity.whole};
  const auto book = [&](Doing doing, const Spans& spans) {
    Spans& booked = account.spans[static_cast<size_t>(doing)];
    booked = Either(booked, Both(rest, spans));
    rest = Without(rest, spans);
  };
  book(Doing::kCompute, activity.ops.spans);
  book(Doing::kOffload, Merged(activity.tiers.calls));
  book(Doing::kBubble, Bubbles(activity));
  book(Doing::kCommunication, Messages(activity));
  book(Doing::kCommunication, Collectives(activity, /*only_state=*/false));
  book(Doing::kOffload, TierWaits(activity.tiers, rest));
  book(Doing::kOptimizer, Merged({activity.update}));
  book(Doing::kCompute, {activity.whole});
  return account;
}

}  // namespace tessera::train
