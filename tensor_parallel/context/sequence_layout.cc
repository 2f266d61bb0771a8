#include "tensor_parallel/context/sequence_layout.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<SequenceLayout> SequenceLayout::Contiguous(int64_t length,
                                                          int64_t ranks) {
  TESSERA_ASSIGN_OR_RETURN(const Partition chunks,
                           Partition::Balanced(length, ranks));
  return SequenceLayout(chunks, /*zigzag=*/false);
}

absl::StatusOr<SequenceLayout> SequenceLayout::Zigzag(int64_t length,
                                                      int64_t ranks) {
  constexpr int64_t kMostRanks = int64_t{1} << 40;
  if (ranks > kMostRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranks, " ranks share a sequence; at most ", kMostRanks));
  }
  TESSERA_ASSIGN_OR_RETURN(const Partition chunks,
                           Partition::Balanced(length, 2 * ranks));
  return SequenceLayout(chunks, /*zigzag=*/true);
}

std::vector<IndexRange> SequenceLayout::RangesOf(int64_t rank) const {
  if (!zigzag_) return {chunks_.RangeOf(rank)};
  return {chunks_.RangeOf(rank), chunks_.RangeOf(chunks_.parts() - 1 - rank)};
}

int64_t SequenceLayout::SizeOf(int64_t rank) const {
  int64_t size = 0;
  for (const IndexRange& range : RangesOf(rank)) size += range.size();
  return size;
}

std::vector<int64_t> SequenceLayout::PositionsOf(int64_t rank) const {
  std::vector<int64_t> positions;
  for (const IndexRange& range : RangesOf(rank)) {
    for (int64_t i = range.begin; i < range.end; ++i) positions.push_back(i);
  }
  return positions;
}

}  // namespace tessera::tensor_parallel
