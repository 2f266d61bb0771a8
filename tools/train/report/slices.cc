#include "tools/train/report/slices.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tessera::train {
namespace {

// In order, and one behind the other.
std::vector<Slice> Disjoint(std::vector<Slice> labels) {
  std::stable_sort(labels.begin(), labels.end(),
                   [](const Slice& a, const Slice& b) {
                     return a.span.begin < b.span.begin;
                   });
  std::vector<Slice> disjoint;
  for (Slice& label : labels) {
    if (!disjoint.empty()) {
      label.span.begin = std::max(label.span.begin, disjoint.back().span.end);
    }
    if (label.span.size() > 0) disjoint.push_back(std::move(label));
  }
  return disjoint;
}

}  // namespace

std::vector<Slice> Slices(const Spans& spans, std::vector<Slice> labels,
                          const SliceLabel& other) {
  const std::vector<Slice> ordered = Disjoint(std::move(labels));
  std::vector<Slice> slices;
  size_t first = 0;
  for (const Span& span : spans) {
    int64_t at = span.begin;
    while (first < ordered.size() && ordered[first].span.end <= at) ++first;
    for (size_t i = first; i < ordered.size(); ++i) {
      const Span& label = ordered[i].span;
      if (label.begin >= span.end) break;
      if (label.begin > at) slices.push_back({{at, label.begin}, other});
      at = std::max(at, label.begin);
      const int64_t end = std::min(span.end, label.end);
      slices.push_back({{at, end}, ordered[i].label});
      at = end;
    }
    if (at < span.end) slices.push_back({{at, span.end}, other});
  }
  return slices;
}

}  // namespace tessera::train
