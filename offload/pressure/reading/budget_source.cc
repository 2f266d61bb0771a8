#include "offload/pressure/reading/budget_source.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::offload {
namespace {

void Merge(MemoryReading from, MemoryReading& into) {
  std::move(from.limits.begin(), from.limits.end(),
            std::back_inserter(into.limits));
  std::move(from.unread.begin(), from.unread.end(),
            std::back_inserter(into.unread));
  if (from.stall.has_value()) {
    const PressureStall before = into.stall.value_or(PressureStall{});
    into.stall = {std::max(before.some_avg10, from.stall->some_avg10),
                  std::max(before.full_avg10, from.stall->full_avg10)};
  }
  into.resident = std::max(into.resident, from.resident);
  into.oom_kills = std::max(into.oom_kills, from.oom_kills);
  into.throttled = std::max(into.throttled, from.throttled);
}

}  // namespace

BudgetSource::BudgetSource(std::shared_ptr<Accounting> accounting)
    : accounting_(std::move(accounting)) {}

absl::StatusOr<MemoryReading> BudgetSource::Read() {
  const Usage usage = accounting_->usage();
  MemoryReading reading;
  if (usage.budget != kUnlimited) {
    reading.limits.push_back({absl::StrCat("budget ", accounting_->name()),
                              usage.current, 0, usage.budget});
  }
  return reading;
}

DeviceSource::DeviceSource(std::string name, Query query)
    : name_(std::move(name)), query_(std::move(query)) {}

absl::StatusOr<MemoryReading> DeviceSource::Read() {
  TESSERA_ASSIGN_OR_RETURN(const DeviceMemory memory, query_(),
                           Annotate(_, name_));
  if (memory.free < 0 || memory.free > memory.total) {
    return absl::InternalError(absl::StrCat(name_, ": ", memory.free,
                                            " bytes of ", memory.total,
                                            " are said to be free"));
  }
  MemoryReading reading;
  reading.limits.push_back(
      {name_, memory.total - memory.free, 0, memory.total});
  return reading;
}

CombinedSource::CombinedSource(
    std::vector<std::shared_ptr<MemorySource>> sources)
    : sources_(std::move(sources)) {}

absl::StatusOr<MemoryReading> CombinedSource::Read() {
  MemoryReading all;
  absl::Status error = absl::NotFoundError(
      "no source of memory readings; give CombinedSource at least one");
  bool any = false;
  for (const auto& source : sources_) {
    absl::StatusOr<MemoryReading> reading = source->Read();
    if (reading.ok()) {
      any = true;
      Merge(*std::move(reading), all);
    } else {
      error = reading.status();
      all.unread.push_back(std::string(error.message()));
    }
  }
  if (!any) return error;
  return all;
}

}  // namespace tessera::offload
