#include "tools/train/report/run_trace.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json/json.h"
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

// The threads after those of Doing.
enum : size_t {
  kCheckpoints = kAllDoings.size(),
  kGathers,
  kReductions,
  kExchanges,
  kThreads
};

std::string_view ThreadName(size_t thread) {
  constexpr std::string_view kOthers[] = {"checkpoint", "gathers of weights",
                                          "reductions of gradients",
                                          "all-to-alls"};
  return thread < kCheckpoints ? DoingName(kAllDoings[thread])
                               : kOthers[thread - kCheckpoints];
}

std::string QuotedJson(std::string_view text) {
  return DumpJson(nlohmann::json(text));
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

// `arguments`: JSON members.
std::string EventOf(const Slice& slice, size_t thread, const TraceClock& clock,
                    std::string_view arguments) {
  return absl::StrCat("{\"ph\":\"X\",\"pid\":", clock.rank, ",\"tid\":", thread,
                      ",\"name\":", QuotedJson(slice.label.name), ",\"cat\":\"",
                      slice.label.category, "\",\"ts\":",
                      Microseconds(slice.span.begin + clock.shift_ns),
                      ",\"dur\":", Microseconds(slice.span.size()),
                      ",\"args\":{", arguments, "}}");
}

Slice SliceOf(const pipeline::Action& action, const Span& span,
              std::string_view prefix = "") {
  return {span,
          {absl::StrCat(prefix, action.ToString()),
           std::string(pipeline::ActionKindName(action.kind)),
           absl::StrCat("\"stage\":", action.stage,
                        ",\"microbatch\":", action.microbatch)}};
}

// Collectives of more than one rank that `is_shown` accepts. If `label` has no
// name, each has that of its operation.
template <typename IsShown>
std::vector<Slice> CollectivesOf(const StepActivity& activity,
                                 const SliceLabel& label, IsShown is_shown) {
  std::vector<Slice> slices;
  for (const LoggedCollective& one : activity.collectives) {
    if (one.ranks < 2 || !is_shown(one)) continue;
    slices.push_back(
        {{one.begin_ns, one.end_ns},
         {label.name.empty() ? std::string(collectives::OpKindName(one.kind))
                             : label.name,
          label.category,
          absl::StrCat("\"bytes\":", one.bytes, ",\"ranks\":", one.ranks)}});
  }
  return slices;
}

// Labels for the time that a rank spends on `doing`.
std::vector<Slice> LabelsOf(Doing doing, const StepActivity& activity) {
  std::vector<Slice> labels;
  if (doing == Doing::kCompute) {
    for (const ActivePass& pass : activity.passes) {
      labels.push_back(SliceOf(pass.action, pass.span));
    }
  } else if (doing == Doing::kCommunication) {
    labels = CollectivesOf(activity, {"", "collective"},
                           [](const auto&) { return true; });
    for (const MessageWait& wait : activity.messages) {
      labels.push_back(SliceOf(wait.action, wait.span));
    }
  } else if (doing == Doing::kBubble) {
    for (const MessageWait& wait : activity.messages) {
      if (!pipeline::Receives(wait.action.kind)) continue;
      labels.push_back(SliceOf(wait.action, wait.span, "before "));
    }
    labels.push_back({activity.tail, {"behind the last pass", "bubble"}});
  }
  return labels;
}

std::vector<Slice> SlicesOf(Doing doing, const StepActivity& activity,
                            const StepAccount& account) {
  const std::string name(DoingName(doing));
  const bool is_busy =
      doing == Doing::kCompute || doing == Doing::kCommunication;
  return Slices(account.of(doing), LabelsOf(doing, activity),
                {is_busy ? "other" : name, name});
}

// The collectives under way on one of the threads after kCheckpoints, also
// while the rank does something else.
std::vector<Slice> TrafficOf(size_t thread, const StepActivity& activity) {
  using collectives::OpKind;
  const SliceLabel label =
      thread == kGathers      ? SliceLabel{"gather weights", "state"}
      : thread == kReductions ? SliceLabel{"reduce gradients", "state"}
                              : SliceLabel{"all_to_all", "exchange"};
  std::vector<Slice> slices =
      CollectivesOf(activity, label, [&](const LoggedCollective& one) {
        if (thread == kExchanges) return one.kind == OpKind::kAllToAll;
        return one.is_state &&
               (one.kind == OpKind::kAllGather) == (thread == kGathers);
      });
  std::vector<Span> spans;
  for (const Slice& slice : slices) spans.push_back(slice.span);
  return Slices(Merged(std::move(spans)), std::move(slices), label);
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

std::string RankEvents(const TraceClock& clock, std::string_view name) {
  std::string events;
  Append(events,
         Metadata(clock.rank, 0, "process_name", "name", QuotedJson(name)));
  Append(events, Metadata(clock.rank, 0, "process_sort_index", "sort_index",
                          absl::StrCat(clock.rank)));
  for (size_t thread = 0; thread < kThreads; ++thread) {
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
  for (size_t thread = 0; thread < kThreads; ++thread) {
    if (thread == kCheckpoints) continue;
    std::vector<Slice> slices =
        thread < kCheckpoints ? SlicesOf(kAllDoings[thread], activity, account)
                              : TrafficOf(thread, activity);
    KeepLongest(slices, most_events);
    for (const Slice& slice : slices) {
      const std::string& more = slice.label.arguments;
      Append(events, EventOf(slice, thread, clock,
                             absl::StrCat("\"step\":", activity.step,
                                          more.empty() ? "" : ",", more)));
    }
  }
  return events;
}

std::string CheckpointEvent(std::string_view name, const Span& span,
                            const TraceClock& clock) {
  return EventOf({span, {std::string(name), "checkpoint"}}, kCheckpoints, clock,
                 "");
}

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
  steps_.push_back(StepEvents(activity, account, clock_));
  if (steps_.size() > kTracedSteps) steps_.pop_front();
}

void RunTrace::AddCheckpoint(std::string_view name, const Span& span) {
  if (!steps_.empty()) {
    Append(steps_.back(), CheckpointEvent(name, span, clock_));
  }
}

std::string RunTrace::OwnEvents() const {
  std::string events = RankEvents(clock_, name_);
  for (const std::string& step : steps_) {
    if (!step.empty()) Append(events, step);
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
