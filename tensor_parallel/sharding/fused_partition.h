// FusedPartition: the parts of a concatenated dimension on each rank.
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
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_FUSED_PARTITION_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_FUSED_PARTITION_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// One of the parts. `groups` divides the ranks and the size: each group of
// ranks / groups neighbours has size / groups elements. Within its group a rank
// has all of these if the part is `replicated`; else they are divided in whole
// units, as by Partition::Blocks.
struct FusedPart {
  int64_t size = 0;  // Elements.
  int64_t unit = 1;  // Elements that stay together: those of a head.
  int64_t groups = 1;
  bool replicated = false;

  friend bool operator==(const FusedPart&, const FusedPart&) = default;
};

// The parts of a fused query, key and value projection. With fewer kv heads
// than ranks, ranks / kv_heads neighbours hold the same kv head and share its
// query heads; otherwise a rank has the query heads of its kv heads.
// InvalidArgument if a number is below 1, kv heads do not divide the query
// heads, or there are fewer of them than ranks and they do not divide these.
absl::StatusOr<std::vector<FusedPart>> QkvParts(int64_t query_heads,
                                                int64_t kv_heads,
                                                int64_t head_size,
                                                int64_t ranks);

// Gate and up projection of a gated MLP.
std::vector<FusedPart> GatedMlpParts(int64_t hidden);

class FusedPartition {
 public:
  // InvalidArgument if there is no part, a size is negative, a unit, groups or
  // `ranks` is below 1, groups do not divide the ranks or the size, or the
  // sizes add up to more than 2^63-1.
  static absl::StatusOr<FusedPartition> Create(std::span<const FusedPart> parts,
                                               int64_t ranks);

  // The size of the whole dimension.
  int64_t size() const { return starts_.back(); }
  int64_t ranks() const { return ranks_; }
  const std::vector<FusedPart>& parts() const { return parts_; }

  // `rank` is in [0, ranks()), `part` in [0, parts().size()).
  // In the whole dimension; and one for each part, which may be empty.
  IndexRange RangeOf(int64_t part, int64_t rank) const;
  std::vector<IndexRange> RangesOf(int64_t rank) const;

  // The size of the rank's shard, and the position of the part in it.
  int64_t SizeOf(int64_t rank) const;
  IndexRange LocalRange(int64_t part, int64_t rank) const;

 private:
  FusedPartition(std::vector<FusedPart> parts, std::vector<int64_t> starts,
                 int64_t ranks)
      : parts_(std::move(parts)), starts_(std::move(starts)), ranks_(ranks) {}

  std::vector<FusedPart> parts_;
  std::vector<int64_t> starts_;  // Of the parts; then the end.
  int64_t ranks_;
};

// PartitionRule: how a dimension is divided over the axes that shard it.
//
//   PartitionRule rule = PartitionRule::Balanced();
//   rule.RangesOf(10, {{4}}, {{1}});  // {3, 6}: the second of 3, 3, 2, 2
//
// Over several axes the first one divides the dimension, the next one divides
// each part, and so on, as in torch's DTensor; so without the last axis a rank
// has exactly what it and its neighbours along that axis have together. A fused
// rule divides once, over all axes together, of which the last varies fastest.

class PartitionRule {
 public:
  enum class Kind { kCeilChunks, kBalanced, kBlocks, kFused };

  // CeilChunks.
  PartitionRule() = default;

  // The rules of the functions of the same names in partition.h.
  static PartitionRule CeilChunks() { return PartitionRule(); }
  static PartitionRule Balanced() { return {Kind::kBalanced, 1, {}}; }
  static PartitionRule Blocks(int64_t block) {
    return {Kind::kBlocks, block, {}};
  }
  static PartitionRule Fused(std::vector<FusedPart> parts) {
    return {Kind::kFused, 1, std::move(parts)};
  }

  Kind kind() const { return kind_; }
  bool fused() const { return kind_ == Kind::kFused; }
  int64_t block() const { return block_; }
  const std::vector<FusedPart>& parts() const { return parts_; }

  // The part of a dimension of `size` elements of the rank at `coordinates`
  // along axes of `sizes`: ascending, non-empty ranges with gaps between them.
  // InvalidArgument if the rule cannot split the dimension in this way.
  absl::StatusOr<std::vector<IndexRange>> RangesOf(
      int64_t size, std::span<const int64_t> sizes,
      std::span<const int64_t> coordinates) const;

  // "ceil", "balanced", "blocks(4)", "fused(256/64/2 64/64/2r 64/64/2r)": the
  // parts' size, unit and groups, r where replicated.
  std::string ToString() const;

  friend bool operator==(const PartitionRule&, const PartitionRule&) = default;

 private:
  PartitionRule(Kind kind, int64_t block, std::vector<FusedPart> parts)
      : kind_(kind), block_(block), parts_(std::move(parts)) {}

  Kind kind_ = Kind::kCeilChunks;
  int64_t block_ = 1;
  std::vector<FusedPart> parts_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_FUSED_PARTITION_H_
