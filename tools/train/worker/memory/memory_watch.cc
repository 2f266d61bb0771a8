#include "tools/train/worker/memory/memory_watch.h"

#include "absl/strings/str_format.h"
#include "collectives/engine/operation_context.h"
#include "offload/pressure/return_memory.h"
#include "tools/train/worker/memory/process_memory.h"

namespace tessera::train {
namespace {

double MiB(int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

}  // namespace

MemoryWatch::System MemoryWatch::RealSystem() {
  return {.resident = [] { return ReadProcessMemory().resident; },
          .return_free_memory = [] { offload::ReturnFreeMemory(); },
          .now_ns = [] { return collectives::MonotonicNanos(); }};
}

std::optional<std::string> MemoryWatch::AfterStep() {
  const int64_t before = system_.resident();
  offload::MemoryReading reading;
  reading.limits.push_back(
      {.source = "--memory_limit", .used = before, .limit = limit_});
  const bool is_short = gauge_.Update(reading, system_.now_ns()) >=
                        offload::PressureLevel::kCritical;
  if (!is_short) {
    has_told_ = false;
    return std::nullopt;
  }
  system_.return_free_memory();
  if (has_told_) return std::nullopt;
  has_told_ = true;
  return absl::StrFormat(
      "memory: a rank has %.1fMiB of its %.1fMiB of --memory_limit; free "
      "memory was returned, which leaves %.1fMiB",
      MiB(before), MiB(limit_), MiB(system_.resident()));
}

}  // namespace tessera::train
