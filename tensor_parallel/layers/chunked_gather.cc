#include "tensor_parallel/layers/chunked_gather.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::tensor_parallel {

absl::StatusOr<ChunkedGather> ChunkedGather::Start(const TensorGroup& group,
                                                   const TokenChunks& chunks,
                                                   ConstTensorView mine,
                                                   TensorView buffer) {
  TESSERA_RETURN_IF_ERROR(group.CheckTokens(chunks.tokens(), mine, buffer));
  if (group.size() == 1) return Here(mine);
  ChunkedGather gather(group.rank(), chunks, mine, buffer);
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    const IndexRange local = chunks.LocalOf(chunk, group.rank());
    const IndexRange rows = chunks.RowsOf(chunk);
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             mine.Narrow(0, local.begin, local.size()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             buffer.Narrow(0, rows.begin, rows.size()));
    TESSERA_ASSIGN_OR_RETURN(
        Pending pending,
        group.StartGatherRows(chunks.SizesOf(chunk), from, to));
    gather.pending_.push_back(std::move(pending));
  }
  return gather;
}

ChunkedGather ChunkedGather::Here(ConstTensorView all) {
  return ChunkedGather(0, TokenChunks(Partition(), 1), all, all);
}

ChunkedGather::~ChunkedGather() {
  for (Pending& pending : pending_) pending.Wait().IgnoreError();
}

absl::Status ChunkedGather::VisitChunk(int64_t chunk, Visit visit) const {
  for (int64_t rank = 0; rank < chunks_.tokens().parts(); ++rank) {
    const IndexRange tokens = chunks_.TokensOf(chunk, rank);
    if (rank == rank_ || tokens.empty()) continue;
    const IndexRange rows = chunks_.RowsOf(chunk, rank);
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                             buffer_.Narrow(0, rows.begin, rows.size()));
    TESSERA_RETURN_IF_ERROR(visit(tokens, part));
  }
  return absl::OkStatus();
}

absl::Status ChunkedGather::ForEach(Visit visit) {
  if (chunks_.count() == 1) {
    for (Pending& pending : pending_) {
      TESSERA_RETURN_IF_ERROR(pending.Wait());
    }
    return visit({0, buffer_.shape()[0]}, buffer_);
  }
  const IndexRange own = chunks_.tokens().RangeOf(rank_);
  if (!own.empty()) TESSERA_RETURN_IF_ERROR(visit(own, mine_));
  for (size_t chunk = 0; chunk < pending_.size(); ++chunk) {
    TESSERA_RETURN_IF_ERROR(pending_[chunk].Wait());
    TESSERA_RETURN_IF_ERROR(VisitChunk(static_cast<int64_t>(chunk), visit));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
