// MeasureProducts: the working memory of a run's matrix products: OpenBLAS's
// packing buffers, panels of bf16 products, tiles of attention.
//
// Their sizes depend on the processor, since each has its own kernels and block
// sizes, and some kernels do not pack small matrices. So they are measured with
// products of the run's sizes, with one side shortened at a time.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_PRODUCT_MEMORY_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_PRODUCT_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/train/loop/run_options.h"

namespace tessera::train {

// The resident bytes by which this memory of a rank of `run` exceeds that of a
// rank of `small`, with `threads` threads per product. Sets the number of
// threads for this process. InvalidArgument if the model cannot be split over
// the mesh.
absl::StatusOr<int64_t> MeasureProducts(const RunOptions& small,
                                        const RunOptions& run, int threads);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_PRODUCT_MEMORY_H_
