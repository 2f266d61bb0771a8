#include "tools/train/loop/process_memory.h"

#include <malloc.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"

namespace tessera::train {
namespace {

// "   12345 kB" in bytes.
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

ProcessMemory ParseProcessStatus(std::string_view text) {
  ProcessMemory memory;
  for (std::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "VmRSS:")) memory.resident = BytesOf(line);
    if (absl::ConsumePrefix(&line, "VmHWM:")) {
      memory.peak_resident = BytesOf(line);
    }
  }
  return memory;
}

ProcessMemory ReadProcessMemory() {
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

}  // namespace tessera::train
