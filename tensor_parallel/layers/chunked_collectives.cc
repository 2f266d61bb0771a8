#include "tensor_parallel/layers/chunked_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

// The number of elements in the first `index` of `parts` balanced parts of
// `size` elements.
int64_t FirstOf(int64_t size, int64_t parts, int64_t index) {
  return size / parts * index + std::min(index, size % parts);
}

// Computes the results of all ranks' tokens of a chunk into its rows of the
// buffer.
absl::Status ComputeChunk(const TokenChunks& chunks, int64_t chunk,
                          const TensorView& buffer,
                          ChunkedSums::Compute compute) {
  // A single chunk has all tokens in order.
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

TokenChunks::TokenChunks(const Partition& tokens, int64_t chunks)
    : tokens_(tokens),
      count_(std::max<int64_t>(1, std::min(chunks, tokens.largest()))) {}

IndexRange TokenChunks::LocalOf(int64_t chunk, int64_t rank) const {
  const int64_t size = tokens_.SizeOf(rank);
  return {FirstOf(size, count_, chunk), FirstOf(size, count_, chunk + 1)};
}

IndexRange TokenChunks::TokensOf(int64_t chunk, int64_t rank) const {
  const int64_t begin = tokens_.RangeOf(rank).begin;
  const IndexRange local = LocalOf(chunk, rank);
  return {begin + local.begin, begin + local.end};
}

std::vector<int64_t> TokenChunks::SizesOf(int64_t chunk) const {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < tokens_.parts(); ++rank) {
    sizes.push_back(LocalOf(chunk, rank).size());
  }
  return sizes;
}

IndexRange TokenChunks::RowsOf(int64_t chunk) const {
  IndexRange rows;
  for (int64_t rank = 0; rank < tokens_.parts(); ++rank) {
    const IndexRange local = LocalOf(chunk, rank);
    rows.begin += local.begin;
    rows.end += local.end;
  }
  return rows;
}

IndexRange TokenChunks::RowsOf(int64_t chunk, int64_t rank) const {
  int64_t begin = RowsOf(chunk).begin;
  for (int64_t before = 0; before < rank; ++before) {
    begin += LocalOf(chunk, before).size();
  }
  return {begin, begin + LocalOf(chunk, rank).size()};
}

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
