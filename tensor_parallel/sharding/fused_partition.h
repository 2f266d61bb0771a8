// FusedPartition: the parts of a concatenated dimension on each rank.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_FUSED_PARTITION_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_FUSED_PARTITION_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// One of the parts. `groups` divides the ranks and the size: each group of
// ranks / groups neighbours has size / groups elements. Within its group a rank
// has all of these elements if the part is `replicated`; otherwise they are
// divided in whole units, as by Partition::Blocks.
struct FusedPart {
  int64_t size = 0;  // Elements.
  int64_t unit = 1;  // Elements that stay together, such as a head.
  int64_t groups = 1;
  bool replicated = false;

  friend bool operator==(const FusedPart&, const FusedPart&) = default;
};

// The parts of a fused query, key and value projection. With fewer kv heads
// than ranks, ranks / kv_heads neighbours hold the same kv head and share its
// query heads; otherwise a rank has the query heads of its kv heads.
// InvalidArgument if a number is below 1, kv heads do not divide the query
// heads, or there are fewer kv heads than ranks and they do not divide the
// ranks.
absl::StatusOr<std::vector<FusedPart>> QkvParts(int64_t query_heads,
                                                int64_t kv_heads,
                                                int64_t head_size,
                                                int64_t ranks);

// A projection of heads of `size` elements, for any number of ranks.
inline FusedPart HeadsPart(int64_t heads, int64_t size) {
  return {.size = heads * size, .unit = size};
}

// The parts of the fused gate and up projection of a gated MLP.
std::vector<FusedPart> GatedMlpParts(int64_t hidden);

// Example:
//
//   // Query, key and value in one matrix: 8 query heads, 2 of keys and values,
//   // 64 elements each, over 4 ranks. Ranks 0 and 1 share the first kv head.
//   TESSERA_ASSIGN_OR_RETURN(auto parts, QkvParts(8, 2, 64, 4));
//   TESSERA_ASSIGN_OR_RETURN(auto qkv, FusedPartition::Create(parts, 4));
//   qkv.RangesOf(1);       // {128, 256}, {512, 576}, {640, 704}
//   qkv.LocalRange(1, 1);  // {128, 192}: where rank 1 has the keys
//
// Splitting the concatenation as one dimension would give the first rank only
// queries. Instead each part is split separately, and a rank's shard is its
// range of every part, concatenated. Source of the layout: Megatron-LM, and
// Ainslie et al., GQA, arXiv 2305.13245, for query groups.
class FusedPartition {
 public:
  // InvalidArgument if `parts` is empty, a size is negative, a unit, groups or
  // `ranks` is below 1, groups do not divide the ranks or the size, or the
  // sizes add up to more than 2^63-1.
  static absl::StatusOr<FusedPartition> Create(std::span<const FusedPart> parts,
                                               int64_t ranks);

  // The size of the whole dimension.
  int64_t size() const { return starts_.back(); }
  int64_t ranks() const { return ranks_; }
  const std::vector<FusedPart>& parts() const { return parts_; }

  // The range of a part on a rank, in the whole dimension; and the ranges of
  // all parts, which may be empty. `rank` is in [0, ranks()), `part` in [0,
  // parts().size()).
  IndexRange RangeOf(int64_t part, int64_t rank) const;
  std::vector<IndexRange> RangesOf(int64_t rank) const;

  // The size of the rank's shard, and the range of a part in it.
  int64_t SizeOf(int64_t rank) const;
  IndexRange LocalRange(int64_t part, int64_t rank) const;

 private:
  FusedPartition(std::vector<FusedPart> parts, std::vector<int64_t> starts,
                 int64_t ranks)
      : parts_(std::move(parts)), starts_(std::move(starts)), ranks_(ranks) {}

  std::vector<FusedPart> parts_;
  std::vector<int64_t> starts_;  // Of each part; then the end.
  int64_t ranks_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_FUSED_PARTITION_H_
