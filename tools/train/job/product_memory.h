// MeasureProducts: what the arithmetic of a run keeps for itself, beside
// tensors: buffers into which OpenBLAS packs its operands, panels of bf16
// products, tiles of attention.
//
// How large these are depends on the processor: each has kernels of its own,
// with blocks of other sizes, and some that pack nothing where matrices are
// small. So it is measured, by products of the run's sizes, of which one side
// at a time is cut short.
#ifndef TESSERA_TOOLS_TRAIN_JOB_PRODUCT_MEMORY_H_
#define TESSERA_TOOLS_TRAIN_JOB_PRODUCT_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/train/run/run_options.h"

namespace tessera::train {

// Resident bytes that a rank of `run` has more of this than a rank of `small`,
// with that many threads a product. Sets the threads of products in this
// process. InvalidArgument where the model does not fit the mesh.
absl::StatusOr<int64_t> MeasureProducts(const RunOptions& small,
                                        const RunOptions& run, int threads);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_JOB_PRODUCT_MEMORY_H_
