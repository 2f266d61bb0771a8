#include "pipeline/execute/agreement.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

namespace {

class Hasher {
 public:
  void Add(uint64_t value) {
    state_ = (state_ ^ value) * 0x9e3779b97f4a7c15ULL;
    state_ ^= state_ >> 29;
  }
  void Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) Add(static_cast<unsigned char>(c));
  }
  void Add(const std::vector<int32_t>& values) {
    Add(values.size());
    for (const int32_t value : values) Add(static_cast<uint64_t>(value));
  }
  uint64_t hash() const { return state_; }

 private:
  uint64_t state_ = 0x2545f4914f6cdd1dULL;
};

uint64_t Packed(const Action& action) {
  const auto microbatch = static_cast<uint32_t>(action.microbatch);
  return static_cast<uint64_t>(action.kind) << 60 |
         static_cast<uint64_t>(action.with_next) << 56 |
         static_cast<uint64_t>(action.stage) << 32 | microbatch;
}

// The report of a rank to the others. Trivially copyable.
struct Report {
  uint64_t hash = 0;
  int64_t code = 0;
  std::array<char, 240> message = {};  // Zero-terminated if shorter.
};
static_assert(sizeof(Report) == 256);

std::string MessageOf(const Report& report) {
  return std::string(report.message.data(),
                     strnlen(report.message.data(), report.message.size()));
}

absl::Status Failures(std::span<const Report> reports) {
  std::string text;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].code == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", rank,
                    " has no executor: ", MessageOf(reports[rank]));
    if (text.size() > 1024) break;
  }
  return text.empty() ? absl::OkStatus() : absl::FailedPreconditionError(text);
}

absl::Status Differences(std::span<const Report> reports) {
  std::map<uint64_t, std::vector<size_t>> by_hash;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    by_hash[reports[rank].hash].push_back(rank);
  }
  if (by_hash.size() == 1) return absl::OkStatus();
  const auto most = std::max_element(
      by_hash.begin(), by_hash.end(), [](const auto& a, const auto& b) {
        return a.second.size() != b.second.size()
                   ? a.second.size() < b.second.size()
                   : a.second.front() > b.second.front();
      });
  std::vector<size_t> others;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].hash != most->first) others.push_back(rank);
  }
  constexpr size_t kMostNamed = 16;
  const std::string more = others.size() > kMostNamed ? "..." : "";
  if (others.size() > kMostNamed) others.resize(kMostNamed);
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks hold different schedules or options: ",
      others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "),
      more, others.size() == 1 ? " differs" : " differ", " from rank ",
      most->second.front(),
      "; every rank must give the same schedule, boundaries, tied weights and ",
      "trace"));
}

absl::StatusOr<TensorSpec> Ask(Stage& stage, const TensorSpec* input) {
  TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, stage.OutputSpec(input));
  TESSERA_RETURN_IF_ERROR(CheckSpec(spec));
  return spec;
}

// The wire format of an action or a change of memory. Doubles hold each of
// these numbers exactly.
constexpr size_t kEntry = 6;
using Entry = std::array<double, kEntry>;

// The header before a rank's entries.
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

uint64_t HashOf(const Schedule& schedule, const ExecutorOptions& options) {
  Hasher hasher;
  hasher.Add(static_cast<uint64_t>(schedule.microbatches));
  hasher.Add(static_cast<uint64_t>(schedule.map.two_way()));
  hasher.Add(static_cast<uint64_t>(schedule.map.stages()));
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    hasher.Add(static_cast<uint64_t>(schedule.map.RankOf(stage)));
  }
  for (const std::vector<Action>& actions : schedule.ranks) {
    hasher.Add(actions.size());
    for (const Action& action : actions) hasher.Add(Packed(action));
  }
  hasher.Add(options.boundaries.size());
  for (const TensorSpec& spec : options.boundaries) {
    hasher.Add(spec.ToString());
  }
  hasher.Add(options.tied.size());
  for (const TiedWeights& tied : options.tied) {
    hasher.Add(tied.name);
    hasher.Add(tied.stages);
  }
  hasher.Add(static_cast<uint64_t>(options.trace));
  return hasher.hash();
}

absl::Status CheckSameSchedule(collectives::Communicator& communicator,
                               uint64_t hash, const absl::Status& own,
                               const collectives::CallOptions& call) {
  Report mine;
  mine.hash = hash;
  mine.code = static_cast<int64_t>(own.code());
  own.message().copy(mine.message.data(), mine.message.size());
  std::vector<Report> all(static_cast<size_t>(communicator.size()));
  const auto bytes = [](auto* data, size_t count) {
    return collectives::Buffer(
        data, static_cast<int64_t>(count * sizeof(Report)), DType::kU8);
  };
  TESSERA_RETURN_IF_ERROR(
      communicator.AllGather(bytes(&mine, 1), bytes(all.data(), all.size()),
                             call),
      Annotate(_, "the ranks of a pipeline compare their schedules"));
  TESSERA_RETURN_IF_ERROR(own);
  TESSERA_RETURN_IF_ERROR(Failures(all));
  return Differences(all);
}

absl::StatusOr<std::vector<TensorSpec>> Negotiate(
    collectives::Communicator& communicator, const StageMap& map,
    const StageOf& stage_of, const collectives::CallOptions& call) {
  std::vector<TensorSpec> boundaries;
  const int64_t rank = communicator.rank().value();
  for (int32_t stage = 0; stage + 1 < map.stages(); ++stage) {
    const std::string place = absl::StrCat(
        "rank ", rank, ": the output of stage ", stage, " of ", map.stages());
    const TensorSpec* const input = stage == 0 ? nullptr : &boundaries.back();
    const int32_t owner = map.RankOf(stage);
    WireSpec wire = {};
    if (owner == rank) {
      TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                               Ask(stage_of(stage), input), Annotate(_, place));
      wire = ToWire(spec);
    }
    TESSERA_RETURN_IF_ERROR(
        communicator.Broadcast(collectives::Buffer(std::span(wire)),
                               collectives::Rank(owner), call),
        Annotate(_, place));
    TESSERA_ASSIGN_OR_RETURN(TensorSpec told, FromWire(wire),
                             Annotate(_, place));
    if (owner != rank && map.RankFromBack(stage) == rank) {
      TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                               Ask(stage_of(stage), input), Annotate(_, place));
      if (spec != told) {
        return absl::InvalidArgumentError(absl::StrCat(
            place, " is ", spec.ToString(), ", but its copy on rank ", owner,
            " gives ", told.ToString()));
      }
    }
    boundaries.push_back(std::move(told));
  }
  return boundaries;
}

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
