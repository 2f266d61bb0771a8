#include "tensor_parallel/sharding/box.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::tensor_parallel {

Dims Box::shape() const {
  Dims shape;
  for (const IndexRange range : ranges) shape.push_back(range.size());
  return shape;
}

int64_t Box::element_count() const {
  // Empty ranges first: the product of the others may overflow.
  for (const IndexRange range : ranges) {
    if (range.empty()) return 0;
  }
  int64_t count = 1;
  for (const IndexRange range : ranges) count *= range.size();
  return count;
}

std::string Box::ToString() const {
  return absl::StrJoin(ranges, " x ", [](std::string* out, IndexRange range) {
    absl::StrAppend(out, "[", range.begin, ", ", range.end, ")");
  });
}

std::ostream& operator<<(std::ostream& os, const Box& box) {
  return os << box.ToString();
}

Box WholeBox(std::span<const int64_t> shape) {
  Box whole;
  for (const int64_t size : shape) whole.ranges.push_back({0, size});
  return whole;
}

Box Intersection(const Box& a, const Box& b) {
  Box both;
  for (size_t dim = 0; dim < a.ranges.size(); ++dim) {
    both.ranges.push_back(Intersection(a.ranges[dim], b.ranges[dim]));
  }
  return both;
}

int64_t OffsetIn(const Box& whole, const Box& part) {
  int64_t offset = 0;
  for (size_t dim = 0; dim < whole.ranges.size(); ++dim) {
    offset = offset * whole.ranges[dim].size() + part.ranges[dim].begin -
             whole.ranges[dim].begin;
  }
  return offset;
}

bool IsContiguousIn(const Box& whole, const Box& part) {
  bool is_cut = false;  // Some inner dimension is not whole.
  for (size_t dim = whole.ranges.size(); dim-- > 0;) {
    if (is_cut && part.ranges[dim].size() != 1) return false;
    is_cut |= part.ranges[dim] != whole.ranges[dim];
  }
  return true;
}

}  // namespace tessera::tensor_parallel
