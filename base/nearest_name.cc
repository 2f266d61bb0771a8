#include "base/nearest_name.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/ascii.h"

namespace tessera {
namespace {

constexpr size_t kMaxLength = 64;

bool SameLetter(char a, char b) {
  return absl::ascii_tolower(a) == absl::ascii_tolower(b);
}

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kMaxLength);
  b = b.substr(0, kMaxLength);
  using Row = std::array<int, kMaxLength + 1>;
  // Distances of the first i-2, i-1 and i letters of a to each prefix of b.
  Row older = {};
  Row old = {};
  Row now = {};
  for (size_t j = 0; j <= b.size(); ++j) now[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    older = old;
    old = now;
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced =
          old[j - 1] + (SameLetter(a[i - 1], b[j - 1]) ? 0 : 1);
      now[j] = std::min({old[j] + 1, now[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && SameLetter(a[i - 1], b[j - 2]) &&
                           SameLetter(a[i - 2], b[j - 1]);
      if (swapped) now[j] = std::min(now[j], older[j - 2] + 1);
    }
  }
  return now[b.size()];
}

std::string_view NearestName(std::string_view given,
                             std::span<const std::string_view> names) {
  std::string_view nearest;
  int least = std::numeric_limits<int>::max();
  for (const std::string_view name : names) {
    const int distance = EditDistance(given, name);
    if (distance >= least) continue;
    least = distance;
    nearest = name;
  }
  return nearest;
}

}  // namespace tessera
