#include "tools/train/report/run_trace.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/record/flight_recorder.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/schedule.h"

namespace tessera::train {

namespace {

// Sorted and cut to be disjoint.
std::vector<Slice> Disjoint(std::vector<Slice> labels) {
  std::stable_sort(labels.begin(), labels.end(),
                   [](const Slice& a, const Slice& b) {
                     return a.span.begin < b.span.begin;
                   });
  std::vector<Slice> disjoint;
  for (Slice& label : labels) {
    if (!disjoint.empty()) {
      label.span.begin = std::max(label.span.begin, disjoint.back().span.end);
    }
    if (label.span.size() > 0) disjoint.push_back(std::move(label));
  }
  return disjoint;
}

}  // namespace

std::vector<Slice> Slices(const Spans& spans, std::vector<Slice> labels,
                          const SliceLabel& other) {
  const std::vector<Slice> ordered = Disjoint(std::move(labels));
  std::vector<Slice> slices;
  size_t first = 0;
  for (const Span& span : spans) {
    int64_t at = span.begin;
    while (first < ordered.size() && ordered[first].span.end <= at) ++first;
    for (size_t i = first; i < ordered.size(); ++i) {
      const Span& label = ordered[i].span;
      if (label.begin >= span.end) break;
      if (label.begin > at) slices.push_back({{at, label.begin}, other});
      at = std::max(at, label.begin);
      const int64_t end = std::min(span.end, label.end);
      slices.push_back({{at, end}, ordered[i].label});
      at = end;
    }
    if (at < span.end) slices.push_back({{at, span.end}, other});
  }
  return slices;
}

namespace {

constexpr size_t kCheckpointThread = kAllDoings.size();
constexpr size_t kGatherThread = kCheckpointThread + 1;
constexpr size_t kReduceThread = kGatherThread + 1;
constexpr size_t kExchangeThread = kReduceThread + 1;

std::string QuotedJson(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true,
                                   nlohmann::json::error_handler_t::replace);
}

// The unit of the trace format. Integers keep every digit.
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

// What is under way on one of the threads of traffic, also while the rank does
// something else: gathers of weights, reductions of gradients, all-to-alls.
std::vector<Slice> TrafficOf(size_t thread, const StepActivity& activity) {
  using collectives::OpKind;
  const SliceLabel label =
      thread == kGatherThread   ? SliceLabel{"gather weights", "state", ""}
      : thread == kReduceThread ? SliceLabel{"reduce gradients", "state", ""}
                                : SliceLabel{"all_to_all", "exchange", ""};
  const auto belongs = [&](const LoggedCollective& one) {
    if (thread == kExchangeThread) return one.kind == OpKind::kAllToAll;
    return one.is_state &&
           (one.kind == OpKind::kAllGather) == (thread == kGatherThread);
  };
  std::vector<Span> spans;
  std::vector<Slice> labels;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks < 2 || !belongs(one)) continue;
    spans.push_back({one.begin_ns, one.end_ns});
    labels.push_back(
        {spans.back(),
         {label.name, label.category,
          absl::StrCat("\"bytes\":", one.bytes, ",\"ranks\":", one.ranks)}});
  }
  return Slices(Merged(std::move(spans)), std::move(labels), label);
}

std::string_view ThreadName(size_t thread) {
  if (thread == kCheckpointThread) return "checkpoint";
  if (thread == kGatherThread) return "gathers of weights";
  if (thread == kReduceThread) return "reductions of gradients";
  if (thread == kExchangeThread) return "all-to-alls";
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

// Keeps the longest slices, sorted by time.
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
  for (size_t thread = 0; thread <= kExchangeThread; ++thread) {
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
  for (const size_t thread : {kGatherThread, kReduceThread, kExchangeThread}) {
    std::vector<Slice> traffic = TrafficOf(thread, activity);
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

namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::ConstBuffer;
using collectives::Rank;

// The texts of all ranks on rank 0; empty on other ranks.
absl::StatusOr<std::vector<std::string>> Gather(Communicator& world,
                                                const std::string& own) {
  const auto ranks = static_cast<size_t>(world.size());
  const auto size = static_cast<int64_t>(own.size());
  std::vector<int64_t> sizes(ranks);
  TESSERA_RETURN_IF_ERROR(
      world.AllGather(ConstBuffer(std::span<const int64_t>(&size, 1)),
                      Buffer(std::span(sizes))));
  const auto most =
      static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<uint8_t> padded(own.begin(), own.end());
  padded.resize(most);
  std::vector<uint8_t> all(world.rank() == Rank(0) ? ranks * most : 0);
  TESSERA_RETURN_IF_ERROR(
      world.Gather(ConstBuffer(std::span<const uint8_t>(padded)),
                   Buffer(std::span(all)), Rank(0)));
  std::vector<std::string> texts;
  for (size_t i = 0; i < ranks && !all.empty(); ++i) {
    const char* const begin = reinterpret_cast<const char*>(&all[i * most]);
    texts.emplace_back(begin, static_cast<size_t>(sizes[i]));
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunTrace>> RunTrace::Create(
    Communicator& world, std::string path, std::string_view name,
    int64_t clock_offset_ns) {
  int64_t begin = collectives::MonotonicNanos();
  TESSERA_RETURN_IF_ERROR(
      world.Broadcast(Buffer(std::span(&begin, 1)), Rank(0)),
      Annotate(_, "agreeing on the begin of a trace"));
  return std::unique_ptr<RunTrace>(new RunTrace(
      world, std::move(path), std::string(name),
      {.rank = world.rank().value(), .shift_ns = clock_offset_ns - begin}));
}

void RunTrace::Add(const StepActivity& activity, const StepAccount& account) {
  steps_.push_back({StepEvents(activity, account, clock_), ""});
  if (steps_.size() > kTracedSteps) steps_.pop_front();
}

void RunTrace::AddCheckpoint(std::string_view name, const Span& span) {
  if (steps_.empty()) return;
  std::string& events = steps_.back().checkpoints;
  absl::StrAppend(&events, events.empty() ? "" : ",\n",
                  CheckpointEvent(name, span, clock_));
}

std::string RunTrace::OwnEvents() const {
  std::string events = RankEvents(clock_, name_);
  for (const Step& step : steps_) {
    for (const std::string& some : {step.events, step.checkpoints}) {
      absl::StrAppend(&events, some.empty() ? "" : ",\n", some);
    }
  }
  return events;
}

absl::Status RunTrace::Write() {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           Gather(world_, OwnEvents()),
                           Annotate(_, "gathering the ranks' traces"));
  if (world_.rank() != Rank(0)) return absl::OkStatus();
  return Annotate(WriteFile(path_, collectives::TraceOf(all)),
                  absl::StrCat("--trace=", path_));
}

}  // namespace tessera::train
