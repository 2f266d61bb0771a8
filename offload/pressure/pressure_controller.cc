#include "offload/pressure/pressure_controller.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/pressure/return_memory.h"

namespace tessera::offload {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PressureController>> PressureController::Create(
    PressureOptions options) {
  if (options.near == nullptr || options.far == nullptr ||
      options.near == options.far || options.source == nullptr) {
    return absl::InvalidArgumentError(
        "a pressure controller needs two different tiers and a source");
  }
  if (!(options.gauge.margin >= 0) || options.gauge.hold_ns < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("margin ", options.gauge.margin, " and hold ",
                     options.gauge.hold_ns, " ns; both are at least 0"));
  }
  return std::unique_ptr<PressureController>(
      new PressureController(std::move(options)));
}

PressureController::PressureController(PressureOptions options)
    : options_(std::move(options)),
      policy_(options_.strategy, options_.gauge.margin),
      gauge_(options_.gauge) {}

absl::StatusOr<PressureReport> PressureController::Check() {
  absl::MutexLock lock(&mutex_);
  PressureReport report;
  TESSERA_ASSIGN_OR_RETURN(report.before, options_.source->Read());
  report.pressure = PressureOf(report.before, options_.gauge);
  report.level = gauge_.Update(report.before, NowNs());
  report.after = report.before;
  if (!policy_.Acts(report.level) ||
      report.pressure < policy_.threshold() - options_.gauge.margin) {
    return report;
  }
  report.acted = true;
  const std::vector<Candidate> candidates = Candidates();
  const int64_t movable = std::accumulate(
      candidates.begin(), candidates.end(), int64_t{0},
      [](int64_t sum, const Candidate& c) { return sum + c.bytes; });
  report.bytes_wanted = policy_.BytesToMove(report.before, movable);
  MoveUpTo(report.bytes_wanted, candidates, report);
  ReadAfter(report);
  return report;
}

absl::StatusOr<PressureReport> PressureController::Offload(int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot offload ", bytes, " bytes; at least 0"));
  }
  absl::MutexLock lock(&mutex_);
  PressureReport report;
  TESSERA_ASSIGN_OR_RETURN(report.before, options_.source->Read());
  report.pressure = PressureOf(report.before, options_.gauge);
  report.level = gauge_.Update(report.before, NowNs());
  report.acted = true;
  report.after = report.before;
  report.bytes_wanted = bytes;
  MoveUpTo(bytes, Candidates(), report);
  ReadAfter(report);
  return report;
}

// What was moved is told even where the pressure cannot be read again.
void PressureController::ReadAfter(PressureReport& report) const {
  absl::StatusOr<MemoryReading> after = options_.source->Read();
  if (after.ok()) {
    report.after = *std::move(after);
  } else {
    report.after.unread.push_back(std::string(after.status().message()));
  }
}

// Last needed first, of equals the largest.
std::vector<PressureController::Candidate> PressureController::Candidates()
    const {
  std::vector<Candidate> candidates;
  for (const std::string& key : options_.near->Keys()) {
    const absl::StatusOr<BlockStat> stat = options_.near->Stat(key);
    if (!stat.ok() || stat->held_bytes == 0) continue;
    const int64_t next = options_.next_use
                             ? options_.next_use(key)
                             : std::numeric_limits<int64_t>::max();
    if (next < 0) continue;
    candidates.push_back({key, stat->held_bytes, next});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) {
              return std::tie(b.next_use, b.bytes, a.key) <
                     std::tie(a.next_use, a.bytes, b.key);
            });
  return candidates;
}

void PressureController::MoveUpTo(int64_t bytes,
                                  const std::vector<Candidate>& candidates,
                                  PressureReport& report) const {
  for (const Candidate& candidate : candidates) {
    if (report.bytes_moved >= bytes) break;
    absl::Status moved = MoveOne(candidate.key);
    if (!moved.ok()) {
      if (report.status.ok()) report.status = std::move(moved);
      continue;
    }
    report.bytes_moved += candidate.bytes;
    report.moved.push_back(candidate.key);
  }
  if (!report.moved.empty()) ReturnFreeMemory();
}

// Without a copy where the tier can show the block's own bytes: memory is what
// is short.
absl::Status PressureController::MoveOne(const std::string& key) const {
  const auto context = [&key] {
    return absl::StrCat("cannot offload block ", QuoteKey(key));
  };
  TESSERA_ASSIGN_OR_RETURN(const BlockStat stat, options_.near->Stat(key),
                           Annotate(_, context()));
  absl::StatusOr<BlockView> view = options_.near->Map(key);
  Buffer copy;
  if (absl::IsUnimplemented(view.status())) {
    TESSERA_ASSIGN_OR_RETURN(
        copy, Buffer::Allocate(HostMemory(), static_cast<size_t>(stat.bytes)),
        Annotate(_, context()));
    TESSERA_RETURN_IF_ERROR(options_.near->Get(key, copy.bytes()),
                            Annotate(_, context()));
    view = BlockView{copy.bytes(), nullptr};
  }
  TESSERA_RETURN_IF_ERROR(view.status(), Annotate(_, context()));
  TESSERA_RETURN_IF_ERROR(options_.far->Put(key, view->bytes, stat.info),
                          Annotate(_, context()));
  view = BlockView{};
  return Annotate(options_.near->Drop(key), context());
}

}  // namespace tessera::offload
