// ShardSpec: how a tensor lies on a mesh.
//
//   // Rows over dp; columns over tp, and each part of them over cp.
//   ShardSpec spec = {.dims = {{{"dp"}}, {{"tp", "cp"}}, {}},
//                     .partial = {"ep"}};
//   spec.ToString();  // "[dp, (tp, cp), -] partial {ep}"
//   TESSERA_ASSIGN_OR_RETURN(Shard shard, ShardOf(mesh, spec, shape, rank));
//   shard.shape();    // what the rank has
//
// Each dimension names the axes that shard it, the one that cuts first in
// front. Along `partial` axes ranks hold addends: the tensor is their sum.
// Along all other axes of the mesh ranks hold the same. The model is that of
// GSPMD, arXiv 2105.04663, and of torch's DTensor (Shard, Replicate, Partial).
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_SPEC_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/layout.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/partition.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

struct DimSharding {
  std::vector<std::string> axes = {};
  PartitionRule rule = {};

  friend bool operator==(const DimSharding&, const DimSharding&) = default;
};

struct ShardSpec {
  std::vector<DimSharding> dims = {};
  std::vector<std::string> partial = {};  // A set: the order does not matter.

  // A tensor of that many dimensions that is the same on all ranks.
  static ShardSpec Replicated(size_t dims) {
    return {.dims = std::vector<DimSharding>(dims)};
  }

  // All axes that shard a dimension or are partial.
  std::vector<std::string> AxesInUse() const;
  bool IsPartial(std::string_view axis) const;

  // "[dp, (tp, cp):balanced, -] partial {ep}"; the rule only where it is not
  // ceil and the dimension is sharded.
  std::string ToString() const;

  // Reads back what ToString prints, with any blanks between the parts.
  // InvalidArgument that shows the place where the text is none of these, an
  // axis is not of lower-case letters and underscores, or anything is longer
  // than a spec may be (4096 characters, 64 dimensions). Whether axes exist and
  // are used once, Validate says.
  static absl::StatusOr<ShardSpec> Parse(std::string_view text);
};

// The same lists and rules; the rule of a dimension without axes does not
// count.
bool operator==(const ShardSpec& a, const ShardSpec& b);
std::ostream& operator<<(std::ostream& os, const ShardSpec& spec);

// InvalidArgument if an axis is unknown to the mesh, is used twice, or no
// division of the mesh has all of them; or a rule's block is below 1.
absl::Status Validate(const ShardSpec& spec, const topology::Mesh& mesh);

// The part of a tensor that one rank holds: for each dimension ascending
// ranges, which are adjacent in the local shard.
struct Shard {
  std::vector<std::vector<IndexRange>> ranges;

  Dims shape() const;
  bool HasShape(std::span<const int64_t> shape) const;
  int64_t element_count() const;

  friend bool operator==(const Shard&, const Shard&) = default;
};

// The elements in both shards.
Shard Intersection(const Shard& a, const Shard& b);

// The shard of `rank` of a tensor of `shape`. InvalidArgument as Validate, and
// where the spec has another number of dimensions, the shape cannot be, the
// mesh has no such rank, or a fused rule does not fit.
absl::StatusOr<Shard> ShardOf(const topology::Mesh& mesh, const ShardSpec& spec,
                              std::span<const int64_t> shape,
                              topology::Rank rank);

// ForEachRun: the elements of a shard as runs that are contiguous in the whole
// tensor, for what is a function of an element's number there.
//
//   ForEachRun(shard, shape, [&](const ShardRun& run) {
//     random.FillNormal(run.whole, values.subspan(run.local, run.length));
//   });

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

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_SHARD_SPEC_H_
