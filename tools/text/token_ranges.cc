#include "tools/text/token_ranges.h"

#include <algorithm>

namespace tessera::text {

std::ostream& operator<<(std::ostream& os, const TokenRange& range) {
  return os << "[" << range.begin << ", " << range.end << ")";
}

void TokenRanges::Append(TokenRange range) {
  if (range.begin >= range.end) return;
  if (!ranges_.empty() && ranges_.back().end == range.begin) {
    ranges_.back().end = range.end;
    return;
  }
  before_.push_back(ranges_.empty() ? 0
                                    : before_.back() + ranges_.back().end -
                                          ranges_.back().begin);
  ranges_.push_back(range);
}

int64_t TokenRanges::memory_bytes() const {
  return static_cast<int64_t>(ranges_.size() *
                              (sizeof(TokenRange) + sizeof(int64_t)));
}

size_t TokenRanges::RangesBefore(int64_t token) const {
  return static_cast<size_t>(
      std::partition_point(
          ranges_.begin(), ranges_.end(),
          [token](const TokenRange& range) { return range.begin < token; }) -
      ranges_.begin());
}

int64_t TokenRanges::CountBefore(int64_t token) const {
  const size_t count = RangesBefore(token);
  if (count == 0) return 0;
  const TokenRange& last = ranges_[count - 1];
  return before_[count - 1] + std::min(token, last.end) - last.begin;
}

int64_t TokenRanges::CountIn(TokenRange whole) const {
  return CountBefore(whole.end) - CountBefore(whole.begin);
}

std::vector<TokenRange> TokenRanges::PartsIn(TokenRange whole) const {
  std::vector<TokenRange> parts;
  const size_t begin = RangesBefore(whole.begin);
  // The range before may extend into `whole`.
  for (size_t i = begin - (begin > 0 ? 1 : 0);
       i < ranges_.size() && ranges_[i].begin < whole.end; ++i) {
    const TokenRange part = {std::max(ranges_[i].begin, whole.begin),
                             std::min(ranges_[i].end, whole.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts;
}

}  // namespace tessera::text
