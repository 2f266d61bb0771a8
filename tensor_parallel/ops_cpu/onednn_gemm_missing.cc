#include "tensor_parallel/ops_cpu/onednn_gemm.h"

namespace tessera::tensor_parallel::cpu {

bool OneDnnGemm(const GemmOptions&, const ConstTensorView&,
                const ConstTensorView&, const TensorView&) {
  return false;
}

bool OneDnnMultipliesBF16() { return false; }

}  // namespace tessera::tensor_parallel::cpu
