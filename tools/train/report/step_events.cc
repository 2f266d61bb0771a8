#include "tools/train/report/step_events.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/action.h"
#include "tools/train/report/slices.h"

namespace tessera::train {
namespace {

constexpr size_t kCheckpointThread = kAllDoings.size();
constexpr size_t kGatherThread = kCheckpointThread + 1;
constexpr size_t kReduceThread = kGatherThread + 1;

std::string QuotedJson(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true,
                                   nlohmann::json::error_handler_t::replace);
}

// The trace's unit, to the nanosecond; whole numbers keep every digit.
std::string Microseconds(int64_t ns) {
  const char* const sign = ns < 0 ? "-" : "";
  const int64_t size = ns < 0 ? -ns : ns;
  return absl::StrFormat("%s%d.%03d", sign, size / 1000, size % 1000);
}

void Append(std::string& events, std::string_view event) {
  absl::StrAppend(&events, events.empty() ? "" : ",\n", event);
}

std::string Metadata(int64_t rank, size_t thread, std::string_view kind,
                     std::string_view key, std::string_view value) {
  return absl::StrCat("{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", thread,
                      ",\"name\":\"", kind, "\",\"args\":{\"", key,
                      "\":", value, "}}");
}

std::string EventOf(const Slice& slice, size_t thread, int64_t step,
                    const TraceClock& clock) {
  const SliceLabel& label = slice.label;
  return absl::StrCat(
      "{\"ph\":\"X\",\"pid\":", clock.rank, ",\"tid\":", thread,
      ",\"name\":", QuotedJson(label.name), ",\"cat\":\"", label.category,
      "\",\"ts\":", Microseconds(slice.span.begin + clock.shift_ns),
      ",\"dur\":", Microseconds(slice.span.size()),
      ",\"args\":{\"step\":", step, label.arguments.empty() ? "" : ",",
      label.arguments, "}}");
}

Slice LabelOf(const pipeline::Action& action, const Span& span,
              std::string_view prefix) {
  return {span,
          {absl::StrCat(prefix, action.ToString()),
           std::string(pipeline::ActionKindName(action.kind)),
           absl::StrCat("\"stage\":", action.stage,
                        ",\"microbatch\":", action.microbatch)}};
}

std::vector<Slice> Passes(const StepActivity& activity) {
  std::vector<Slice> labels;
  for (const ActivePass& pass : activity.passes) {
    labels.push_back(LabelOf(pass.action, pass.span, ""));
  }
  return labels;
}

std::vector<Slice> Waits(const StepActivity& activity) {
  std::vector<Slice> labels;
  for (const MessageWait& wait : activity.messages) {
    if (!pipeline::Receives(wait.action.kind)) continue;
    labels.push_back(LabelOf(wait.action, wait.span, "before "));
  }
  labels.push_back({activity.tail, {"behind the last pass", "bubble", ""}});
  return labels;
}

std::vector<Slice> Traffic(const StepActivity& activity) {
  std::vector<Slice> labels;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks < 2) continue;
    labels.push_back(
        {{one.begin_ns, one.end_ns},
         {std::string(collectives::OpKindName(one.kind)), "collective",
          absl::StrCat("\"bytes\":", one.bytes, ",\"ranks\":", one.ranks)}});
  }
  for (const MessageWait& wait : activity.messages) {
    labels.push_back(LabelOf(wait.action, wait.span, ""));
  }
  return labels;
}

// Gathers, or reductions, beside whatever the rank does.
std::vector<Slice> StateTraffic(const StepActivity& activity, bool gathers) {
  const std::string name = gathers ? "gather weights" : "reduce gradients";
  std::vector<Span> spans;
  std::vector<Slice> labels;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks < 2 || !one.is_state) continue;
    if ((one.kind == collectives::OpKind::kAllGather) != gathers) continue;
    spans.push_back({one.begin_ns, one.end_ns});
    labels.push_back(
        {spans.back(),
         {name, "state",
          absl::StrCat("\"bytes\":", one.bytes, ",\"ranks\":", one.ranks)}});
  }
  return Slices(Merged(std::move(spans)), std::move(labels),
                {name, "state", ""});
}

std::string_view ThreadName(size_t thread) {
  if (thread == kCheckpointThread) return "checkpoint";
  if (thread == kGatherThread) return "gathers of weights";
  if (thread == kReduceThread) return "reductions of gradients";
  return DoingName(kAllDoings[thread]);
}

std::vector<Slice> SlicesOf(Doing doing, const StepActivity& activity,
                            const StepAccount& account) {
  const Spans& spans = account.of(doing);
  const std::string name(DoingName(doing));
  switch (doing) {
    case Doing::kCompute:
      return Slices(spans, Passes(activity), {"other", name, ""});
    case Doing::kCommunication:
      return Slices(spans, Traffic(activity), {"other", name, ""});
    case Doing::kBubble:
      return Slices(spans, Waits(activity), {name, name, ""});
    case Doing::kOptimizer:
    case Doing::kOffload:
      return Slices(spans, {}, {name, name, ""});
  }
  return {};
}

// The longest, in the order of time.
void KeepLongest(std::vector<Slice>& slices, size_t most) {
  if (slices.size() <= most) return;
  std::nth_element(slices.begin(),
                   slices.begin() + static_cast<ptrdiff_t>(most), slices.end(),
                   [](const Slice& a, const Slice& b) {
                     return a.span.size() > b.span.size();
                   });
  slices.resize(most);
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.span.begin < b.span.begin;
  });
}

}  // namespace

std::string RankEvents(const TraceClock& clock, std::string_view name) {
  std::string events;
  Append(events,
         Metadata(clock.rank, 0, "process_name", "name", QuotedJson(name)));
  Append(events, Metadata(clock.rank, 0, "process_sort_index", "sort_index",
                          absl::StrCat(clock.rank)));
  for (size_t thread = 0; thread <= kReduceThread; ++thread) {
    Append(events, Metadata(clock.rank, thread, "thread_name", "name",
                            QuotedJson(ThreadName(thread))));
    Append(events, Metadata(clock.rank, thread, "thread_sort_index",
                            "sort_index", absl::StrCat(thread)));
  }
  return events;
}

std::string StepEvents(const StepActivity& activity, const StepAccount& account,
                       const TraceClock& clock, size_t most_events) {
  std::string events;
  for (const Doing doing : kAllDoings) {
    std::vector<Slice> slices = SlicesOf(doing, activity, account);
    KeepLongest(slices, most_events);
    for (const Slice& slice : slices) {
      Append(events,
             EventOf(slice, static_cast<size_t>(doing), activity.step, clock));
    }
  }
  for (const size_t thread : {kGatherThread, kReduceThread}) {
    std::vector<Slice> traffic =
        StateTraffic(activity, thread == kGatherThread);
    KeepLongest(traffic, most_events);
    for (const Slice& slice : traffic) {
      Append(events, EventOf(slice, thread, activity.step, clock));
    }
  }
  return events;
}

std::string CheckpointEvent(std::string_view name, const Span& span,
                            const TraceClock& clock) {
  return absl::StrCat(
      "{\"ph\":\"X\",\"pid\":", clock.rank, ",\"tid\":", kCheckpointThread,
      ",\"name\":", QuotedJson(name), ",\"cat\":\"checkpoint\",\"ts\":",
      Microseconds(span.begin + clock.shift_ns),
      ",\"dur\":", Microseconds(span.size()), "}");
}

}  // namespace tessera::train
