// Box: a rectangular part of a tensor, such as the shard of a rank.
//
//   const Box rows = {{{32, 64}, {0, 512}}};        // rows 32 to 63
//   const Box columns = {{{0, 128}, {256, 384}}};
//   Intersection(rows, columns).shape();            // [32, 128]
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_BOX_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_BOX_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "absl/container/inlined_vector.h"
#include "base/tensor/layout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// A range of indices in each dimension. Without dimensions it has one element.
struct Box {
  absl::InlinedVector<IndexRange, 4> ranges = {};

  Dims shape() const;
  int64_t element_count() const;
  // "[32, 64) x [0, 512)".
  std::string ToString() const;

  friend bool operator==(const Box&, const Box&) = default;
};

std::ostream& operator<<(std::ostream& os, const Box& box);

// All elements of a tensor.
Box WholeBox(std::span<const int64_t> shape);

// The elements in both boxes, which have equally many dimensions.
Box Intersection(const Box& a, const Box& b);

// The index in `whole`, whose elements are in row-major order, of the first
// element of `part`, which lies inside.
int64_t OffsetIn(const Box& whole, const Box& part);

// True if the elements of `part` are adjacent and in order in `whole`.
bool IsContiguousIn(const Box& whole, const Box& part);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_BOX_H_
