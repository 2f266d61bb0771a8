#include "tools/train/report/spans.h"

#include <algorithm>

namespace tessera::train {

Spans Merged(std::vector<Span> raw) {
  std::sort(raw.begin(), raw.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  Spans merged;
  for (const Span& span : raw) {
    if (span.size() == 0) continue;
    if (!merged.empty() && span.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, span.end);
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

Spans Both(const Spans& a, const Spans& b) {
  Spans both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Span common = {std::max(a[i].begin, b[j].begin),
                         std::min(a[i].end, b[j].end)};
    if (common.size() > 0) both.push_back(common);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return both;
}

Spans Without(const Spans& a, const Spans& b) {
  Spans rest;
  size_t j = 0;
  for (Span span : a) {
    while (j < b.size() && b[j].end <= span.begin) ++j;
    for (size_t k = j; k < b.size() && b[k].begin < span.end; ++k) {
      if (b[k].begin > span.begin) rest.push_back({span.begin, b[k].begin});
      span.begin = std::min(b[k].end, span.end);
    }
    if (span.size() > 0) rest.push_back(span);
  }
  return rest;
}

Spans Either(const Spans& a, const Spans& b) {
  std::vector<Span> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return Merged(std::move(all));
}

Spans Earliest(const Spans& spans, int64_t ns) {
  Spans earliest;
  for (const Span& span : spans) {
    if (ns <= 0) break;
    const int64_t taken = std::min(ns, span.size());
    earliest.push_back({span.begin, span.begin + taken});
    ns -= taken;
  }
  return earliest;
}

int64_t Length(const Spans& spans) {
  int64_t length = 0;
  for (const Span& span : spans) length += span.size();
  return length;
}

}  // namespace tessera::train
