#include "tensor_parallel/sharding/partition_rule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

absl::StatusOr<std::vector<IndexRange>> FusedRanges(
    const std::vector<FusedPart>& parts, int64_t size,
    std::span<const int64_t> sizes, std::span<const int64_t> coordinates) {
  int64_t ranks = 1;
  int64_t rank = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ranks *= sizes[i];
    rank = rank * sizes[i] + coordinates[i];
  }
  TESSERA_ASSIGN_OR_RETURN(const FusedPartition partition,
                           FusedPartition::Create(parts, ranks));
  if (partition.size() != size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the fused parts have ", partition.size(), " elements, the dimension ",
        size, "; they must be the same"));
  }
  return partition.RangesOf(rank);
}

// Without empty ranges, and without cuts between ranges that touch.
std::vector<IndexRange> Joined(const std::vector<IndexRange>& ranges) {
  std::vector<IndexRange> joined;
  for (const IndexRange range : ranges) {
    if (range.empty()) continue;
    if (!joined.empty() && joined.back().end == range.begin) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace

absl::StatusOr<std::vector<IndexRange>> PartitionRule::RangesOf(
    int64_t size, std::span<const int64_t> sizes,
    std::span<const int64_t> coordinates) const {
  std::vector<IndexRange> ranges = {{0, size}};
  if (kind_ == Kind::kFused && !sizes.empty()) {
    TESSERA_ASSIGN_OR_RETURN(ranges,
                             FusedRanges(parts_, size, sizes, coordinates));
  } else {
    IndexRange& range = ranges[0];
    for (size_t i = 0; i < sizes.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          const Partition partition,
          kind_ == Kind::kCeilChunks
              ? Partition::CeilChunks(range.size(), sizes[i])
              : Partition::Blocks(range.size(), sizes[i], block_));
      const IndexRange own = partition.RangeOf(coordinates[i]);
      range = {range.begin + own.begin, range.begin + own.end};
    }
  }
  return Joined(ranges);
}

std::string PartitionRule::ToString() const {
  switch (kind_) {
    case Kind::kCeilChunks:
      return "ceil";
    case Kind::kBalanced:
      return "balanced";
    case Kind::kBlocks:
      return absl::StrCat("blocks(", block_, ")");
    case Kind::kFused:
      break;
  }
  return absl::StrCat(
      "fused(",
      absl::StrJoin(parts_, " ",
                    [](std::string* out, const FusedPart& part) {
                      absl::StrAppend(out, part.size, "/", part.unit, "/",
                                      part.groups, part.replicated ? "r" : "");
                    }),
      ")");
}

}  // namespace tessera::tensor_parallel
