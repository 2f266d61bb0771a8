#include "pipeline/execute/gather_timeline.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

// An action or a change of memory, as it is sent: doubles hold each of these
// numbers exactly.
constexpr size_t kEntry = 6;
using Entry = std::array<double, kEntry>;

// What precedes a rank's entries.
struct Counts {
  int64_t computations = 0;
  int64_t communications = 0;
  int64_t memory = 0;
  int64_t peak_bytes = 0;
  int64_t peak_activations = 0;

  int64_t entries() const { return computations + communications + memory; }
};
constexpr size_t kCounts = sizeof(Counts) / sizeof(int64_t);

Entry EntryOf(const TimedAction& timed) {
  return {static_cast<double>(timed.action.kind),
          static_cast<double>(timed.action.stage),
          static_cast<double>(timed.action.microbatch),
          timed.action.with_next ? 1.0 : 0.0,
          timed.begin,
          timed.end};
}

TimedAction TimedOf(const Entry& entry) {
  Action action;
  action.kind = static_cast<ActionKind>(static_cast<int>(entry[0]));
  action.stage = static_cast<int32_t>(entry[1]);
  action.microbatch = static_cast<int32_t>(entry[2]);
  action.with_next = entry[3] != 0;
  return {action, entry[4], entry[5]};
}

std::vector<Entry> EntriesOf(const RankTimeline& line) {
  std::vector<Entry> entries;
  for (const auto* list : {&line.computations, &line.communications}) {
    for (const TimedAction& timed : *list) entries.push_back(EntryOf(timed));
  }
  for (const MemoryChange& change : line.memory) {
    entries.push_back({change.time, static_cast<double>(change.bytes)});
  }
  return entries;
}

RankTimeline LineOf(const Counts& counts, std::span<const Entry> entries) {
  RankTimeline line;
  const auto first = static_cast<size_t>(counts.computations);
  const auto second = first + static_cast<size_t>(counts.communications);
  for (size_t at = 0; at < entries.size(); ++at) {
    const Entry& entry = entries[at];
    if (at < first) {
      line.computations.push_back(TimedOf(entry));
      line.busy += entry[5] - entry[4];
    } else if (at < second) {
      line.communications.push_back(TimedOf(entry));
    } else {
      line.memory.push_back({entry[0], static_cast<int64_t>(entry[1])});
    }
  }
  line.peak_bytes = counts.peak_bytes;
  line.peak_activations = counts.peak_activations;
  return line;
}

Timeline TimelineOf(std::span<const Counts> counts,
                    std::span<const Entry> entries) {
  Timeline timeline;
  for (const Counts& of_rank : counts) {
    const auto size = static_cast<size_t>(of_rank.entries());
    timeline.ranks.push_back(LineOf(of_rank, entries.first(size)));
    entries = entries.subspan(size);
    const RankTimeline& line = timeline.ranks.back();
    timeline.makespan = std::max(timeline.makespan, line.last());
    for (const TimedAction& timed : line.communications) {
      timeline.makespan = std::max(timeline.makespan, timed.end);
    }
    timeline.longest_stage =
        std::max(timeline.longest_stage, line.last() - line.first());
  }
  return timeline;
}

}  // namespace

absl::StatusOr<Timeline> GatherTimeline(collectives::Communicator& communicator,
                                        const RankTimeline& own,
                                        const collectives::CallOptions& call) {
  const auto ranks = static_cast<size_t>(communicator.size());
  const Counts mine = {static_cast<int64_t>(own.computations.size()),
                       static_cast<int64_t>(own.communications.size()),
                       static_cast<int64_t>(own.memory.size()), own.peak_bytes,
                       own.peak_activations};
  std::vector<Counts> counts(ranks);
  TESSERA_RETURN_IF_ERROR(
      communicator.AllGather(
          collectives::ConstBuffer(&mine, kCounts, DType::kI64),
          collectives::Buffer(counts.data(),
                              static_cast<int64_t>(ranks * kCounts),
                              DType::kI64),
          call),
      Annotate(_, "the ranks' timelines"));
  std::vector<int64_t> lengths;
  size_t all = 0;
  for (const Counts& of_rank : counts) {
    all += static_cast<size_t>(of_rank.entries());
    lengths.push_back(of_rank.entries() * static_cast<int64_t>(kEntry));
  }
  const std::vector<Entry> entries = EntriesOf(own);
  std::vector<Entry> gathered(all);
  TESSERA_RETURN_IF_ERROR(
      communicator.AllGatherUneven(
          collectives::ConstBuffer(
              entries.data(), static_cast<int64_t>(entries.size() * kEntry),
              DType::kF64),
          collectives::Buffer(gathered.data(),
                              static_cast<int64_t>(all * kEntry), DType::kF64),
          lengths, call),
      Annotate(_, "the ranks' timelines"));
  return TimelineOf(counts, gathered);
}

}  // namespace tessera::pipeline
