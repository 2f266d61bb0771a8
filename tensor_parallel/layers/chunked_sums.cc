#include "tensor_parallel/layers/chunked_sums.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

// What all ranks' tokens of a chunk give, in its rows of the buffer.
absl::Status ComputeChunk(const TokenChunks& chunks, int64_t chunk,
                          const TensorView& buffer,
                          ChunkedSums::Compute compute) {
  // One chunk is all tokens in their order.
  if (chunks.count() == 1) return compute({0, chunks.tokens().size()}, buffer);
  for (int64_t rank = 0; rank < chunks.tokens().parts(); ++rank) {
    const IndexRange rows = chunks.RowsOf(chunk, rank);
    if (rows.empty()) continue;
    TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                             buffer.Narrow(0, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(compute(chunks.TokensOf(chunk, rank), part));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChunkedSums> ChunkedSums::Scatter(const TensorGroup& group,
                                                 const TokenChunks& chunks,
                                                 TensorView buffer,
                                                 TensorView mine,
                                                 Compute compute) {
  TESSERA_RETURN_IF_ERROR(group.CheckTokens(chunks.tokens(), mine, buffer));
  ChunkedSums sums;
  if (group.size() == 1) {
    TESSERA_RETURN_IF_ERROR(compute(chunks.tokens().RangeOf(0), mine));
    return sums;
  }
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    TESSERA_RETURN_IF_ERROR(ComputeChunk(chunks, chunk, buffer, compute));
    const IndexRange rows = chunks.RowsOf(chunk);
    const IndexRange local = chunks.LocalOf(chunk, group.rank());
    TESSERA_ASSIGN_OR_RETURN(const TensorView from,
                             buffer.Narrow(0, rows.begin, rows.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             mine.Narrow(0, local.begin, local.size()));
    TESSERA_ASSIGN_OR_RETURN(
        Pending pending,
        group.StartScatterRowSums(chunks.SizesOf(chunk), from, to));
    sums.pending_.push_back(std::move(pending));
  }
  return sums;
}

absl::StatusOr<ChunkedSums> ChunkedSums::SumOver(const TensorGroup& group,
                                                 int64_t chunks, TensorView x,
                                                 Compute compute) {
  TESSERA_ASSIGN_OR_RETURN(const Partition rows,
                           Partition::Balanced(x.shape()[0], chunks));
  ChunkedSums sums;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const IndexRange range = rows.RangeOf(chunk);
    if (range.empty() && chunk > 0) break;
    TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                             x.Narrow(0, range.begin, range.size()));
    TESSERA_RETURN_IF_ERROR(compute(range, part));
    TESSERA_ASSIGN_OR_RETURN(Pending pending, group.StartSumOver(part));
    sums.pending_.push_back(std::move(pending));
  }
  return sums;
}

ChunkedSums::~ChunkedSums() { Wait().IgnoreError(); }

absl::Status ChunkedSums::Wait() {
  absl::Status status;
  for (Pending& pending : pending_) status.Update(pending.Wait());
  pending_.clear();
  return status;
}

}  // namespace tessera::tensor_parallel
