// ForEachRun: the elements of a shard as runs that are contiguous in the whole
// tensor, for what is a function of an element's number there.
//
//   ForEachRun(shard, shape, [&](const ShardRun& run) {
//     random.FillNormal(run.whole, values.subspan(run.local, run.length));
//   });
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_RUNS_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor_parallel/sharding/shard_spec.h"

namespace tessera::tensor_parallel {

// Row-major numbers of the first element, in the shard and in the whole tensor.
struct ShardRun {
  int64_t local = 0;
  int64_t whole = 0;
  int64_t length = 0;
};

// In the order of the shard's elements, without gaps there. Runs are as long as
// the dimensions that are not cut make them.
template <typename Visit>
void ForEachRun(const Shard& shard, std::span<const int64_t> shape,
                Visit visit) {
  if (shard.element_count() == 0) return;
  // `inner` elements belong to one index of dimension `dims` - 1.
  size_t dims = shape.size();
  int64_t inner = 1;
  const auto is_whole = [&](size_t dim) {
    return shard.ranges[dim].front().size() == shape[dim];
  };
  while (dims > 1 && is_whole(dims - 1)) inner *= shape[--dims];
  int64_t local = 0;
  const auto descend = [&](const auto& self, size_t dim,
                           int64_t index) -> void {
    if (dim == dims) {
      visit(ShardRun{local, index * inner, inner});
      local += inner;
      return;
    }
    for (const IndexRange range : shard.ranges[dim]) {
      const int64_t begin = index * shape[dim] + range.begin;
      if (dim + 1 == dims) {
        const int64_t length = range.size() * inner;
        visit(ShardRun{local, begin * inner, length});
        local += length;
        continue;
      }
      for (int64_t i = 0; i < range.size(); ++i) self(self, dim + 1, begin + i);
    }
  };
  descend(descend, 0, 0);
}

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_RUNS_H_
