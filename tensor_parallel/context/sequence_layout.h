// SequenceLayout: the positions of a sequence on each rank of a
// context-parallel group.
//
//   TESSERA_ASSIGN_OR_RETURN(auto layout, SequenceLayout::Zigzag(4096, 4));
//   layout.PositionsOf(1);     // 512 to 1023, then 3072 to 3583
//
//   contiguous   rank r has the r-th of n chunks
//   zigzag       of 2 n chunks, rank r has the r-th and the r-th from the end.
//                Under a causal mask each rank then has the same work if
//                2 n divides the length; otherwise the work, in pairs of a
//                query and a key, differs by at most 1.5 times the length
//                (Llama 3, arXiv 2407.21783, section 3.3.2).
//
// The length is arbitrary: chunks differ by at most one position, and may be
// empty.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_SEQUENCE_LAYOUT_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_SEQUENCE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class SequenceLayout {
 public:
  // InvalidArgument if the length is negative or there is no rank.
  static absl::StatusOr<SequenceLayout> Contiguous(int64_t length,
                                                   int64_t ranks);
  static absl::StatusOr<SequenceLayout> Zigzag(int64_t length, int64_t ranks);

  int64_t length() const { return chunks_.size(); }
  int64_t ranks() const {
    return zigzag_ ? chunks_.parts() / 2 : chunks_.parts();
  }
  bool zigzag() const { return zigzag_; }

  // The number of positions of a rank in [0, ranks()).
  int64_t SizeOf(int64_t rank) const;

  // One range (contiguous) or two (zigzag), which may be empty.
  std::vector<IndexRange> RangesOf(int64_t rank) const;
  // All positions of the rank, in ascending order.
  std::vector<int64_t> PositionsOf(int64_t rank) const;

 private:
  SequenceLayout(const Partition& chunks, bool zigzag)
      : chunks_(chunks), zigzag_(zigzag) {}

  Partition chunks_;
  bool zigzag_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_SEQUENCE_LAYOUT_H_
