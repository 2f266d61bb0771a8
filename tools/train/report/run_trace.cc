#include "tools/train/report/run_trace.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/record/dump.h"

namespace tessera::train {
namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::ConstBuffer;
using collectives::Rank;

// All ranks' texts, on rank 0; nothing on others.
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
      Annotate(_, "the begin of a trace"));
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
                           Annotate(_, "the ranks' traces"));
  if (world_.rank() != Rank(0)) return absl::OkStatus();
  return Annotate(WriteFile(path_, collectives::TraceOf(all)),
                  absl::StrCat("--trace=", path_));
}

}  // namespace tessera::train
