// Spans: sets of moments, as sorted and disjoint spans of time.
//
//   Spans busy = Merged(std::move(raw));
//   Spans rest = Without({whole}, busy);
//   int64_t ns = Length(rest);
#ifndef TESSERA_TOOLS_TRAIN_REPORT_SPANS_H_
#define TESSERA_TOOLS_TRAIN_REPORT_SPANS_H_

#include <cstdint>
#include <vector>

namespace tessera::train {

// Nanoseconds from `begin` up to and without `end`.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end > begin ? end - begin : 0; }
  friend bool operator==(const Span&, const Span&) = default;
};

// In order, none empty, none touching the next.
using Spans = std::vector<Span>;

// The moments of any of `raw`, which may overlap and be in any order.
Spans Merged(std::vector<Span> raw);

// The moments of both; of the first and not the second; of either.
Spans Both(const Spans& a, const Spans& b);
Spans Without(const Spans& a, const Spans& b);
Spans Either(const Spans& a, const Spans& b);

// The earliest moments, `ns` of them, or all where there are fewer.
Spans Earliest(const Spans& spans, int64_t ns);

int64_t Length(const Spans& spans);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_SPANS_H_
