// Random shapes and specs for tests of sharded tensors.
#ifndef TESSERA_TENSOR_PARALLEL_SHARDING_RANDOM_SPECS_H_
#define TESSERA_TENSOR_PARALLEL_SHARDING_RANDOM_SPECS_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor/layout.h"
#include "tensor_parallel/sharding/shard_spec.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {

inline topology::Mesh MeshOf(std::string_view axes,
                             topology::Rank first = topology::Rank(0)) {
  return *topology::Mesh::Create(*topology::ParseAxes(axes), first);
}

class RandomSpecs {
 public:
  explicit RandomSpecs(uint64_t seed) : random_(seed) {}

  // In [0, limit).
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  // 1 to 3 dimensions; sizes that do not divide, are below the ranks, or zero.
  Dims Shape() {
    constexpr int64_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 12, 13};
    Dims shape;
    for (int64_t dims = 1 + Below(3); dims > 0; --dims) {
      const int64_t choice = Below(40);
      shape.push_back(choice == 0 ? 0 : kSizes[1 + choice % 9]);
    }
    return shape;
  }

  PartitionRule Rule(int64_t size) {
    switch (Below(6)) {
      case 0:
        return PartitionRule::Balanced();
      case 1:
        return PartitionRule::Blocks(1 + Below(4));
      case 2:
        // A replicated part, which any number of ranks divides.
        return PartitionRule::Fused({{.size = size / 2, .unit = 1 + Below(3)},
                                     {.size = size / 4, .replicated = true},
                                     {.size = size - size / 2 - size / 4}});
      default:
        return PartitionRule::CeilChunks();
    }
  }

  // Each axis shards some dimension, is partial, or neither.
  ShardSpec Spec(const topology::Mesh& mesh, const Dims& shape) {
    ShardSpec spec = ShardSpec::Replicated(shape.size());
    std::vector<topology::Axis> axes(mesh.axes().begin(), mesh.axes().end());
    std::shuffle(axes.begin(), axes.end(), random_);
    for (const topology::Axis& axis : axes) {
      const auto place =
          static_cast<size_t>(Below(static_cast<int64_t>(shape.size()) + 2));
      if (place < shape.size()) {
        spec.dims[place].axes.push_back(axis.name);
      } else if (place == shape.size()) {
        spec.partial.push_back(axis.name);
      }
    }
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      spec.dims[dim].rule = Rule(shape[dim]);
    }
    return spec;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_SHARDING_RANDOM_SPECS_H_
