// IndexRange: the elements [begin, end) of a dimension.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_INDEX_RANGE_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_INDEX_RANGE_H_

#include <algorithm>
#include <cstdint>
#include <ostream>

namespace tessera::tensor_parallel {

struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool contains(int64_t index) const {
    return begin <= index && index < end;
  }

  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

// What both hold; empty if that is nothing.
constexpr IndexRange Intersection(IndexRange a, IndexRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

inline std::ostream& operator<<(std::ostream& os, IndexRange range) {
  return os << "[" << range.begin << ", " << range.end << ")";
}

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_INDEX_RANGE_H_
