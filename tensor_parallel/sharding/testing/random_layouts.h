// RandomLayouts: random shapes and placements for tests of sharded tensors.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_TESTING_RANDOM_LAYOUTS_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_TESTING_RANDOM_LAYOUTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensor/layout.h"
#include "tensor_parallel/sharding/sharded_layout.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

inline topology::Mesh MeshOf(std::string_view axes,
                             topology::Rank first = topology::Rank(0)) {
  return *topology::Mesh::Create(*topology::ParseAxes(axes), first);
}

inline ShardedLayout LayoutOf(const topology::Mesh& mesh, const Dims& shape,
                              std::string_view placements) {
  return *ShardedLayout::Create(mesh, shape, *ParsePlacements(placements),
                                EmptyShards::kAllowed);
}

class RandomLayouts {
 public:
  explicit RandomLayouts(uint64_t seed) : random_(seed) {}

  // In [0, limit).
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  // 1 to 3 dimensions, of sizes that the ranks do not divide, that are below
  // their number, or, rarely, zero.
  Dims Shape() {
    constexpr int64_t kSizes[] = {1, 2, 3, 4, 5, 7, 8, 12, 13};
    Dims shape;
    for (int64_t dims = 1 + Below(3); dims > 0; --dims) {
      shape.push_back(Below(40) == 0 ? 0 : kSizes[Below(9)]);
    }
    return shape;
  }

  // Each axis shards a dimension, is partial or replicated.
  ShardedLayout Layout(const topology::Mesh& mesh, const Dims& shape) {
    Placements placements;
    std::vector<topology::Axis> axes(mesh.axes().begin(), mesh.axes().end());
    std::shuffle(axes.begin(), axes.end(), random_);
    std::vector<bool> is_cut(shape.size());
    for (const topology::Axis& axis : axes) {
      const auto place =
          static_cast<size_t>(Below(static_cast<int64_t>(shape.size()) + 2));
      if (place > shape.size()) continue;
      Placement& placement = placements.emplace_back();
      placement.axis = axis.name;
      if (place == shape.size()) continue;
      placement.dim = static_cast<int>(place);
      placement.rule = Rule(shape[place], axis.size.value(), is_cut[place]);
      is_cut[place] = true;
    }
    return *ShardedLayout::Create(mesh, shape, std::move(placements),
                                  EmptyShards::kAllowed);
  }

 private:
  PartitionRule Rule(int64_t size, int64_t parts, bool is_cut) {
    const int64_t choice = Below(5);
    if (choice == 0) return PartitionRule::CeilChunks();
    if (choice == 1) return PartitionRule::Blocks(1 + Below(4));
    if (choice > 2 || is_cut) return PartitionRule::Balanced();
    std::vector<int64_t> sizes;
    for (int64_t left = size; parts > 0; --parts) {
      sizes.push_back(parts == 1 ? left : Below(left + 1));
      left -= sizes.back();
    }
    return PartitionRule::Uneven(std::move(sizes));
  }

  std::mt19937_64 random_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_TESTING_RANDOM_LAYOUTS_H_
