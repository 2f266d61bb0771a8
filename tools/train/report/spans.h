// Spans: sets of moments as sorted, disjoint intervals.
//
//   Spans busy = Merged(std::move(raw));
//   Spans rest = Without({whole}, busy);
//   int64_t ns = Length(rest);
#ifndef TESSERA_TOOLS_TRAIN_REPORT_SPANS_H_
#define TESSERA_TOOLS_TRAIN_REPORT_SPANS_H_

#include <cstdint>
#include <vector>

namespace tessera::train {

// Nanoseconds [begin, end).
struct Span {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end > begin ? end - begin : 0; }
  friend bool operator==(const Span&, const Span&) = default;
};

// Sorted; none is empty or touches the next.
using Spans = std::vector<Span>;

// The union of `raw`, which may overlap and be in any order.
Spans Merged(std::vector<Span> raw);

// The intersection, the difference and the union.
Spans Both(const Spans& a, const Spans& b);
Spans Without(const Spans& a, const Spans& b);
Spans Either(const Spans& a, const Spans& b);

// The earliest `ns` nanoseconds, or all if there are fewer.
Spans Earliest(const Spans& spans, int64_t ns);

int64_t Length(const Spans& spans);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_SPANS_H_
