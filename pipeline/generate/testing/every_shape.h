// For tests: the shapes with which every generator is tested.
//
//   for (const PipelineShape& shape : EveryShape(/*chunks=*/2)) ...
#ifndef TESSERA_PIPELINE_GENERATE_TESTING_EVERY_SHAPE_H_
#define TESSERA_PIPELINE_GENERATE_TESTING_EVERY_SHAPE_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "pipeline/generate/draft.h"

namespace tessera::pipeline {

// Ranks 1 to 12 and micro-batches 1 to 40; `chunks` chunks, or 1 to 4 if it is
// 0.
inline std::vector<PipelineShape> EveryShape(int64_t chunks) {
  std::vector<PipelineShape> shapes;
  for (int64_t v = chunks > 0 ? chunks : 1; v <= (chunks > 0 ? chunks : 4);
       ++v) {
    for (int64_t p = 1; p <= 12; ++p) {
      for (int64_t m = 1; m <= 40; ++m) shapes.push_back({p, v, m});
    }
  }
  return shapes;
}

inline std::ostream& operator<<(std::ostream& os, const PipelineShape& shape) {
  return os << shape.ranks << " ranks, " << shape.chunks << " chunks, "
            << shape.microbatches << " micro-batches";
}

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_GENERATE_TESTING_EVERY_SHAPE_H_
