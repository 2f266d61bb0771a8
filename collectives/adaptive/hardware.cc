#include "collectives/adaptive/hardware.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/os/processors.h"

namespace tessera::collectives {
namespace {

constexpr size_t kMaxPart = 120;

// The first bytes of a file of the system; empty where there is none.
std::string ReadStart(const std::string& path) {
  std::ifstream file(path);
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// Printable ASCII of it.
std::string Shortened(std::string_view text) {
  const std::string_view stripped =
      absl::StripAsciiWhitespace(text).substr(0, kMaxPart);
  std::string shortened = stripped.empty() ? "?" : std::string(stripped);
  for (char& c : shortened) c = absl::ascii_isprint(c) ? c : '?';
  return shortened;
}

// Data and unified caches of the first CPU, smallest first.
std::string CacheSizes() {
  std::string sizes;
  for (int index = 0; index < 8; ++index) {
    const std::string directory =
        absl::StrCat("/sys/devices/system/cpu/cpu0/cache/index", index, "/");
    const std::string size = ReadStart(directory + "size");
    if (size.empty()) break;
    if (absl::StrContains(ReadStart(directory + "type"), "Instruction")) {
      continue;
    }
    absl::StrAppend(&sizes, " ", Shortened(size).substr(0, 16));
  }
  return sizes.empty() ? " ?" : sizes;
}

std::string OwnHostName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "?";
  return Shortened(name.data());
}

}  // namespace

std::string ModelNameIn(std::string_view cpuinfo) {
  for (std::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos)
      return Shortened(line.substr(colon + 1));
  }
  return "?";
}

std::string DescribeHardware() {
  return absl::StrCat(ModelNameIn(ReadStart("/proc/cpuinfo")), "; ",
                      AvailableProcessors(), " cpus; caches", CacheSizes(),
                      "; host ", OwnHostName());
}

}  // namespace tessera::collectives
