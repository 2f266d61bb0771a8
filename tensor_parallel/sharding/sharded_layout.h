// ShardedLayout: the part of a tensor that each rank of a mesh holds.
//
//   TESSERA_ASSIGN_OR_RETURN(Placements placements,
//                            ParsePlacements("dp:0,tp:1"));
//   TESSERA_ASSIGN_OR_RETURN(
//       ShardedLayout layout,
//       ShardedLayout::Create(mesh, {{128, 512}}, placements));
//   layout.BoxOf(rank).shape();   // [64, 128] with dp = 2 and tp = 4
//
// Each axis of the mesh shards one dimension, holds partial sums, or has no
// placement: then ranks along it hold the same elements. The model is that of
// GSPMD, arXiv 2105.04663, and of torch's DTensor (Shard, Replicate, Partial).
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_SHARDED_LAYOUT_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_SHARDED_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/tensor/layout.h"
#include "tensor_parallel/sharding/box.h"
#include "tensor_parallel/sharding/partition.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

// The role of one axis of a mesh.
struct Placement {
  static constexpr int kPartial = -1;

  std::string axis;
  // The dimension that the axis shards. kPartial: each rank along the axis has
  // an addend, and the tensor is their sum.
  int dim = kPartial;
  PartitionRule rule = {};

  bool is_partial() const { return dim == kPartial; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

// If several axes shard a dimension, the first one divides the dimension and
// each further one divides the parts. Axes without a placement are replicated.
using Placements = std::vector<Placement>;

// Reads "tp:1", "dp:0,tp:0:ceil,cp:sum" (an axis, its dimension or "sum", and a
// rule other than balanced), or "replicated". InvalidArgument that shows the
// item if the text is none of these.
absl::StatusOr<Placements> ParsePlacements(std::string_view text);
std::string FormatPlacements(const Placements& placements);

// A layout in which some rank would hold no element is an error, unless empty
// shards are allowed or the whole tensor is empty.
enum class EmptyShards { kRejected, kAllowed };

// An immutable value; const methods may be called from any thread.
class ShardedLayout {
 public:
  // InvalidArgument if a size is negative, an axis is unknown or used twice, no
  // division of the mesh has all of the axes, a dimension is out of range,
  // uneven sizes do not fit or are not the first on their dimension, or a shard
  // is empty and `empty` rejects it.
  static absl::StatusOr<ShardedLayout> Create(
      const topology::Mesh& mesh, std::span<const int64_t> shape,
      Placements placements, EmptyShards empty = EmptyShards::kRejected);

  // The same tensor and mesh with other placements. Errors as Create.
  absl::StatusOr<ShardedLayout> With(Placements placements) const {
    return With(std::move(placements), empty_);
  }
  absl::StatusOr<ShardedLayout> With(Placements placements,
                                     EmptyShards empty) const;

  const topology::Mesh& mesh() const { return *mesh_; }
  // True if the layout's mesh has the ranks and axes of `mesh`, in its order.
  bool IsOn(const topology::Mesh& mesh) const;
  const Dims& shape() const { return shape_; }
  // Sorted by dimension, then in the order in which axes divide it; partial
  // axes come first, in alphabetical order.
  const Placements& placements() const { return placements_; }
  std::vector<std::string> axes() const;

  // The elements of the whole tensor that `rank`, which the mesh contains,
  // holds.
  Box BoxOf(topology::Rank rank) const;

  // True if some axis of more than one rank shards a dimension.
  bool is_sharded() const;
  // True if some axis of more than one rank holds addends.
  bool is_partial() const;
  // True if a rank needs others to have the whole tensor.
  bool requires_communication() const { return is_sharded() || is_partial(); }

  // "[128,512] as tp:1".
  std::string ToString() const;

  // True if shape and placements are the same.
  friend bool operator==(const ShardedLayout& a, const ShardedLayout& b) {
    return a.shape_ == b.shape_ && a.placements_ == b.placements_;
  }

 private:
  ShardedLayout(std::shared_ptr<const topology::Mesh> mesh, Dims shape,
                Placements placements, EmptyShards empty)
      : mesh_(std::move(mesh)),
        shape_(std::move(shape)),
        placements_(std::move(placements)),
        empty_(empty) {}

  absl::Status Check() const;
  absl::Status CheckDim(size_t dim) const;
  bool AnyAxis(bool partial) const;

  std::shared_ptr<const topology::Mesh> mesh_;
  Dims shape_;
  Placements placements_;
  EmptyShards empty_;
};

std::ostream& operator<<(std::ostream& os, const ShardedLayout& layout);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_SHARDED_LAYOUT_H_
