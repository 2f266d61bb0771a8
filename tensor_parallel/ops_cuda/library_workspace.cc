#include "tensor_parallel/ops_cuda/library_workspace.h"

#include <algorithm>
#include <cstdint>

#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kBF16Bytes = 2;
constexpr int64_t kF32Bytes = 4;

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// The offset of a part of `size` bytes after the first `bytes`; adds the part
// to `bytes`.
int64_t AddPart(int64_t size, int64_t& bytes) {
  const int64_t offset = bytes;
  bytes += RoundUp(size, Scratch::kAlignment);
  return offset;
}

}  // namespace

CudnnForwardScratch::CudnnForwardScratch(const CudnnAttentionShape& shape,
                                         int64_t workspace_bytes)
    : bytes(0) {
  output = AddPart(shape.query_rows() * shape.head_size * kBF16Bytes, bytes);
  log_sum_exp = AddPart(shape.query_rows() * kF32Bytes, bytes);
  workspace = AddPart(workspace_bytes, bytes);
}

CudnnBackwardScratch::CudnnBackwardScratch(const CudnnAttentionShape& shape,
                                           bool deterministic,
                                           int64_t workspace_bytes)
    : bytes(0) {
  const int64_t query_elements = shape.query_rows() * shape.head_size;
  const int64_t key_elements = shape.key_rows() * shape.head_size;
  output = AddPart(query_elements * kBF16Bytes, bytes);
  log_sum_exp = AddPart(shape.query_rows() * kF32Bytes, bytes);
  dots = AddPart(shape.query_rows() * kF32Bytes, bytes);
  query_gradient = AddPart(query_elements * kBF16Bytes, bytes);
  key_gradient = AddPart(key_elements * kBF16Bytes, bytes);
  value_gradient = AddPart(key_elements * kBF16Bytes, bytes);
  query_sum = AddPart(deterministic ? 0 : query_elements * kF32Bytes, bytes);
  workspace = AddPart(workspace_bytes, bytes);
}

int64_t CudnnBackwardWorkspaceBytes(const CudnnAttentionShape& shape,
                                    bool deterministic) {
  constexpr int64_t kTileQueries = 64, kTileKeys = 128;
  int64_t bytes = Scratch::kAlignment;
  if (shape.heads != shape.kv_heads) {
    bytes += 2 * shape.sequences * shape.keys * shape.heads * shape.head_size *
             kBF16Bytes;
  }
  if (deterministic) {
    bytes += shape.sequences * shape.heads *
             RoundUp(shape.queries, kTileQueries) *
             RoundUp(shape.keys, kTileKeys) * kBF16Bytes;
  }
  return RoundUp(bytes, Scratch::kAlignment);
}

int64_t LibraryWorkspaceBytes(const CudnnAttentionShape& shape,
                              bool deterministic) {
  if (shape.query_rows() == 0 || shape.key_rows() == 0) {
    return kCublasLtWorkspaceBytes;
  }
  // The forward has fewer parts and a smaller workspace.
  const int64_t largest =
      CudnnBackwardScratch(shape, deterministic,
                           CudnnBackwardWorkspaceBytes(shape, deterministic))
          .bytes;
  return kCublasLtWorkspaceBytes + largest +
         std::min(largest / 2, Scratch::kLargestGrowth);
}

}  // namespace tessera::tensor_parallel
