// EveryMesh: every way to make 1, 2, 4 and 8 ranks of four axes.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_EVERY_MESH_H_
#define TESSERA_TOOLS_TRAIN_PARITY_EVERY_MESH_H_

#include <cstdint>
#include <vector>

#include "tools/train/loop/run_options.h"

namespace tessera::train {

// 35 meshes, by ranks.
inline std::vector<MeshSizes> EveryMesh() {
  constexpr int64_t kSizes[] = {1, 2, 4, 8};
  std::vector<MeshSizes> meshes;
  for (const int64_t ranks : kSizes) {
    for (const int64_t dp : kSizes) {
      for (const int64_t pp : kSizes) {
        for (const int64_t cp : kSizes) {
          if (ranks % (dp * pp * cp) != 0) continue;
          meshes.push_back({dp, pp, cp, ranks / (dp * pp * cp)});
        }
      }
    }
  }
  return meshes;
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_EVERY_MESH_H_
