#include "tensor_parallel/sharding/distributed_tensor.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "tensor_parallel/sharding/shard_copy.h"

namespace tessera::tensor_parallel {
namespace {

// Returns whether the rank has the values of a tensor whose addends elsewhere
// are zero.
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
