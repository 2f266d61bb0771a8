#include "tools/train/loop/memory_watch.h"

#include <malloc.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "collectives/engine/operation_context.h"
#include "offload/pressure/pressure_gauge.h"

namespace tessera::train {

namespace {

// Parses "   12345 kB" into bytes.
int64_t BytesOf(std::string_view value) {
  value = absl::StripAsciiWhitespace(value);
  int64_t kibibytes = 0;
  if (!absl::ConsumeSuffix(&value, " kB") ||
      !absl::SimpleAtoi(value, &kibibytes) || kibibytes < 0 ||
      kibibytes > (int64_t{1} << 52)) {
    return 0;
  }
  return kibibytes * 1024;
}

}  // namespace

ResidentMemory ParseProcessStatus(std::string_view text) {
  ResidentMemory memory;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "VmRSS:")) memory.resident = BytesOf(line);
    if (absl::ConsumePrefix(&line, "VmHWM:")) {
      memory.peak_resident = BytesOf(line);
    }
  }
  return memory;
}

ResidentMemory ReadResidentMemory() {
  return ParseProcessStatus(
      ReadFile("/proc/self/status", 1 << 16).value_or(""));
}

void ReturnFreedBlocks() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

bool RestartPeakMemory() {
  std::ofstream references("/proc/self/clear_refs");
  return bool(references << "5" << std::flush);
}

namespace {

double MiB(int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

}  // namespace

MemoryWatch::System MemoryWatch::RealSystem() {
  return {.read = ReadResidentMemory,
          .restart_peak = RestartPeakMemory,
          .return_free_memory = [] { offload::ReturnFreeMemory(); },
          .now_ns = [] { return collectives::MonotonicNanos(); }};
}

void MemoryWatch::Restart() { restarts_peak_ = system_.restart_peak(); }

MemoryWatch::Usage MemoryWatch::AfterStep() {
  const ResidentMemory before = system_.read();
  Usage usage = {.used =
                     restarts_peak_ ? before.peak_resident : before.resident};
  peak_ = std::max({peak_, usage.used, before.peak_resident});
  usage.reading.limits.push_back(
      {.source = "--memory_limit", .used = usage.used, .limit = share_});
  const bool is_short =
      gauge_.Update(usage.reading, system_.now_ns()) >= policy_.acts_at;
  if (!is_short) {
    has_told_ = false;
    Restart();
    return usage;
  }
  system_.return_free_memory();
  const int64_t returned =
      std::max<int64_t>(before.resident - system_.read().resident, 0);
  if (!has_told_) {
    usage.notice = absl::StrFormat(
        "had %.1fMiB of its %.1fMiB of --memory_limit; %.1fMiB of freed "
        "memory were returned",
        MiB(usage.used), MiB(share_), MiB(returned));
  }
  has_told_ = true;
  usage.used -= returned;
  Restart();
  return usage;
}

}  // namespace tessera::train
