#include "tensor_parallel/sharding/distributed_tensor.h"

#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"

namespace tessera::tensor_parallel {

namespace {

// A contiguous range that both shards have, and its offset in each.
struct Piece {
  int64_t from = 0;
  int64_t to = 0;
  int64_t length = 0;
};

// The pieces of a dimension; usually few enough to need no allocation.
using Pieces = absl::InlinedVector<Piece, 4>;
using PiecesByDim = absl::InlinedVector<Pieces, 4>;

Pieces PiecesOf(std::span<const IndexRange> from,
                std::span<const IndexRange> to) {
  Pieces pieces;
  int64_t from_start = 0;
  for (const IndexRange a : from) {
    int64_t to_start = 0;
    for (const IndexRange b : to) {
      const IndexRange both = Intersection(a, b);
      if (!both.empty()) {
        pieces.push_back({from_start + both.begin - a.begin,
                          to_start + both.begin - b.begin, both.size()});
      }
      to_start += b.size();
    }
    from_start += a.size();
  }
  return pieces;
}

absl::Status CheckShape(const Shard& shard, const Dims& shape,
                        std::string_view side) {
  if (shard.HasShape(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", side, " has shape ", DimsToString(shape), ", its shard ",
      DimsToString(shard.shape()), "; they must be the same"));
}

// The pieces of dimension `dim` and of those after it.
absl::Status CopyFrom(std::span<const Pieces> pieces, int dim,
                      const ConstTensorView& source, const TensorView& target) {
  if (static_cast<size_t>(dim) == pieces.size()) return Copy(source, target);
  for (const Piece& piece : pieces[static_cast<size_t>(dim)]) {
    const auto at = static_cast<size_t>(dim);
    if (piece.length == source.shape()[at] &&
        piece.length == target.shape()[at]) {
      return CopyFrom(pieces, dim + 1, source, target);
    }
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                             source.Narrow(dim, piece.from, piece.length));
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             target.Narrow(dim, piece.to, piece.length));
    TESSERA_RETURN_IF_ERROR(CopyFrom(pieces, dim + 1, from, to));
  }
  return absl::OkStatus();
}

}  // namespace

Shard WholeOf(std::span<const int64_t> shape) {
  Shard whole;
  for (const int64_t size : shape) {
    whole.ranges.emplace_back();
    if (size > 0) whole.ranges.back().push_back({0, size});
  }
  return whole;
}

std::optional<int64_t> OffsetIn(const Shard& whole, const Shard& part) {
  if (part.element_count() == 0) return 0;
  int64_t offset = 0;
  int64_t stride = 1;  // Of the dimension, in the whole.
  bool cut = false;    // Some dimension further in is not whole.
  const Dims shape = whole.shape();
  const Dims part_shape = part.shape();
  for (size_t dim = whole.ranges.size(); dim-- > 0;) {
    if (cut && part_shape[dim] != 1) return std::nullopt;
    const Pieces pieces = PiecesOf(whole.ranges[dim], part.ranges[dim]);
    int64_t next = pieces[0].from;
    for (const Piece& piece : pieces) {
      if (piece.from != next) return std::nullopt;
      next += piece.length;
    }
    offset += pieces[0].from * stride;
    stride *= shape[dim];
    cut |= part_shape[dim] != shape[dim];
  }
  return offset;
}

absl::Status CopyShared(const Shard& from, const ConstTensorView& source,
                        const Shard& to, const TensorView& target) {
  TESSERA_RETURN_IF_ERROR(CheckShape(from, source.shape(), "source"));
  TESSERA_RETURN_IF_ERROR(CheckShape(to, target.shape(), "target"));
  if (from.ranges.size() != to.ranges.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shards of ", from.ranges.size(), " and of ", to.ranges.size(),
        " dimensions; they must be of the same tensor"));
  }
  if (source.dtype() != target.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy of ", DTypeName(source.dtype()), " elements to ",
                     DTypeName(target.dtype()), "; they must be the same"));
  }
  PiecesByDim pieces;
  for (size_t dim = 0; dim < from.ranges.size(); ++dim) {
    pieces.push_back(PiecesOf(from.ranges[dim], to.ranges[dim]));
  }
  return CopyFrom(pieces, 0, source, target);
}

namespace {

// Returns true if the rank has the values of a partial tensor whose other
// addends are zero.
absl::StatusOr<bool> IsAtZero(const topology::Mesh& mesh, topology::Rank rank,
                              std::span<const std::string> axes) {
  for (const std::string& axis : axes) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t coordinate,
                             mesh.CoordinateOf(rank, axis));
    if (coordinate != 0) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<DistributedTensor> DistributedTensor::Create(
    const topology::Mesh& mesh, topology::Rank rank, const ShardSpec& spec,
    DType dtype, std::span<const int64_t> shape,
    std::shared_ptr<MemoryResource> resource) {
  TESSERA_ASSIGN_OR_RETURN(Shard shard, ShardOf(mesh, spec, shape, rank));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor local, Tensor::Create(dtype, shard.shape(), std::move(resource)));
  return DistributedTensor(mesh, rank, spec, shape, std::move(shard),
                           std::move(local));
}

absl::StatusOr<DistributedTensor> DistributedTensor::FromLocal(
    const topology::Mesh& mesh, topology::Rank rank, const ShardSpec& spec,
    std::span<const int64_t> shape, Tensor local) {
  TESSERA_ASSIGN_OR_RETURN(Shard shard, ShardOf(mesh, spec, shape, rank));
  if (local.shape() != shard.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a local tensor of shape ", DimsToString(local.shape()), "; rank ",
        rank.value(), " has ", DimsToString(shard.shape()), " of ",
        DimsToString(shape), " as ", spec.ToString()));
  }
  return DistributedTensor(mesh, rank, spec, shape, std::move(shard),
                           std::move(local));
}

absl::StatusOr<DistributedTensor> DistributedTensor::FromFull(
    const topology::Mesh& mesh, topology::Rank rank, const ShardSpec& spec,
    ConstTensorView full) {
  TESSERA_ASSIGN_OR_RETURN(
      DistributedTensor tensor,
      Create(mesh, rank, spec, full.dtype(), full.shape()));
  TESSERA_ASSIGN_OR_RETURN(const bool has_values,
                           IsAtZero(mesh, rank, spec.partial));
  TESSERA_RETURN_IF_ERROR(has_values
                              ? CopyShared(WholeOf(full.shape()), full,
                                           tensor.shard_, tensor.local_.view())
                              : Fill(tensor.local_.view(), 0.0f));
  return tensor;
}

std::string DistributedTensor::ToString() const {
  return absl::StrCat(DTypeName(dtype()), " ", DimsToString(shape_), " as ",
                      spec_.ToString(), ", rank ", rank_.value(), " has ",
                      DimsToString(local_.shape()));
}

bool SameBits(const DistributedTensor& a, const DistributedTensor& b) {
  const std::span<const std::byte> x = a.local().buffer().bytes();
  const std::span<const std::byte> y = b.local().buffer().bytes();
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         a.spec() == b.spec() && a.shard() == b.shard() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
}

}  // namespace tessera::tensor_parallel
