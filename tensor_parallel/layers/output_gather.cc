#include "tensor_parallel/layers/output_gather.h"

#include <vector>

#include "base/status_macros.h"

namespace tessera::tensor_parallel {

bool IsFirstHolder(const FusedPartition& partition, size_t part, int64_t rank) {
  const FusedPart& of = partition.parts()[part];
  return !of.replicated || rank % (partition.ranks() / of.groups) == 0;
}

// Puts a rank's outputs where they are among all.
absl::Status OutputGather::Place(int64_t rank, ConstTensorView local,
                                 TensorView y) const {
  for (size_t part = 0; part < partition_.parts().size(); ++part) {
    if (!IsFirstHolder(partition_, part, rank)) continue;
    const auto index = static_cast<int64_t>(part);
    const IndexRange from = partition_.LocalRange(index, rank);
    const IndexRange to = partition_.RangeOf(index, rank);
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView source,
                             local.Narrow(1, from.begin, from.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView target,
                             y.Narrow(1, to.begin, to.size()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Copy(source, target));
  }
  return absl::OkStatus();
}

absl::Status OutputGather::Gather(ConstTensorView local, TensorView y) {
  const int64_t tokens = local.shape()[0];
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (int64_t rank = 0; rank < group_.size(); ++rank) {
    counts.push_back(tokens * partition_.SizeOf(rank));
    total += counts.back();
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView all,
                           all_.Get(local.dtype(), {{total}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView flat,
                           local.Reshape({{local.element_count()}}));
  TESSERA_ASSIGN_OR_RETURN(Pending pending,
                           group_.StartGatherRows(counts, flat, all));
  TESSERA_RETURN_IF_ERROR(pending.Wait());
  int64_t begin = 0;
  for (int64_t rank = 0; rank < group_.size(); ++rank) {
    const int64_t count = counts[static_cast<size_t>(rank)];
    TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                             all.Narrow(0, begin, count));
    TESSERA_ASSIGN_OR_RETURN(const TensorView rows,
                             part.Reshape({{tokens, partition_.SizeOf(rank)}}));
    TESSERA_RETURN_IF_ERROR(Place(rank, rows, y));
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status OutputGather::Slice(ConstTensorView y_gradient,
                                 TensorView local) const {
  const int64_t rank = group_.rank();
  for (size_t part = 0; part < partition_.parts().size(); ++part) {
    const auto index = static_cast<int64_t>(part);
    const IndexRange from = partition_.RangeOf(index, rank);
    const IndexRange to = partition_.LocalRange(index, rank);
    TESSERA_ASSIGN_OR_RETURN(const TensorView target,
                             local.Narrow(1, to.begin, to.size()));
    if (!IsFirstHolder(partition_, part, rank)) {
      TESSERA_RETURN_IF_ERROR(group_.ops().Fill(0, target));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView source,
                             y_gradient.Narrow(1, from.begin, from.size()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Copy(source, target));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
