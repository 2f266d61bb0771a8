// The Frobenius norm of a matrix on its device, and the parts of a scratch
// vector.
//
//   ScratchParts parts(scratch);
//   TESSERA_ASSIGN_OR_RETURN(const MatrixNorm norm,
//                            NormOf(ops, x, work, parts));
//   TESSERA_RETURN_IF_ERROR(ScaleBy(ops, norm.inverse, x));  // Norm 1.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_MATRIX_NORM_H_
#define TESSERA_TOOLS_TRAIN_MODEL_MATRIX_NORM_H_

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

// Takes tensors from a vector, which begin at multiples of 64 bytes.
class ScratchParts {
 public:
  explicit ScratchParts(const TensorView& all) : all_(all) {}

  // The elements that a tensor takes.
  static int64_t Rounded(int64_t elements) {
    return (elements + kAligned - 1) / kAligned * kAligned;
  }
  absl::StatusOr<TensorView> Take(std::initializer_list<int64_t> shape);

 private:
  static constexpr int64_t kAligned = 16;

  const TensorView all_;
  int64_t taken_ = 0;
};

// Tensors of one element.
struct MatrixNorm {
  TensorView norm;
  TensorView inverse;  // Finite for a matrix of zeros.
};

// The number of elements that NormOf takes.
int64_t NormElements(int64_t rows, int64_t columns);

// Enqueues the norm of x [rows, columns], which is contiguous and not empty.
// `work`, of the same shape and type, is overwritten.
absl::StatusOr<MatrixNorm> NormOf(tensor_parallel::Ops& ops,
                                  const TensorView& x, const TensorView& work,
                                  ScratchParts& parts);

// x *= factor, a tensor of one element; x is contiguous.
absl::Status ScaleBy(tensor_parallel::Ops& ops, const TensorView& factor,
                     const TensorView& x);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MATRIX_NORM_H_
