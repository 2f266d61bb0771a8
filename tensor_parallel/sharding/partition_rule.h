// PartitionRule: how a dimension is cut over the axes that shard it.
//
//   PartitionRule rule = PartitionRule::Balanced();
//   rule.RangesOf(10, {{4}}, {{1}});  // {3, 6}: the second of 3, 3, 2, 2
//
// Over several axes the first one cuts the dimension, the next one cuts each
// part, and so on, as torch's DTensor does; so without the last axis a rank has
// exactly what it and its neighbours along that axis have together. A fused
// rule cuts once, over all axes together, of which the last varies fastest.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_RULE_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_RULE_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel {

class PartitionRule {
 public:
  enum class Kind { kCeilChunks, kBalanced, kBlocks, kFused };

  // CeilChunks.
  PartitionRule() = default;

  // As the functions of those names: tensor_parallel/sharding.
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

  // What the rank at `coordinates` along axes of `sizes` has of a dimension of
  // `size` elements: ascending ranges with gaps between them, none empty.
  // InvalidArgument if the rule cannot cut it so.
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

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_PARTITION_RULE_H_
