// Products of matrices, also of groups of rows and in fp8.
//
//   // y = x w^T: x is [tokens, in], w [out, in], y [tokens, out]
//   ops.Run(op::Gemm{{.transpose_b = true}, x, w, y});
//   // The same for experts: w is [experts * out, in], and the rows of x and y
//   // are in the order of experts.
//   ops.Run(op::GroupedGemm{{.transpose_b = true}, rows, x, w, y});
//
// Products in fp8 with scales of earlier steps: Micikevicius et al., FP8
// Formats for Deep Learning, arXiv 2209.05433; NVIDIA Transformer Engine,
// delayed scaling.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_PRODUCTS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_PRODUCTS_H_

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

struct GemmOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1;
  double beta = 0;  // If it is 0, c is overwritten without being read.
};

struct Fp8GemmOptions {
  bool accumulate = false;  // Adds to c instead of overwriting it.
  // Permits the device to keep fewer than f32's bits in partial sums (Hopper
  // keeps about 14): for the forward pass; gradients need the bits.
  bool fast = false;
};

namespace op {

// c = alpha op(a) op(b) + beta c; op(a) is [m, k], op(b) [k, n], c [m, n]. If a
// and b are bf16, c may also have the type of statistics (gradients of weights
// that are accumulated in f32).
struct Gemm {
  static constexpr std::string_view kName = "Gemm";
  GemmOptions options;
  ConstTensorView a, b;
  TensorView c;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return c.element_count() == 0; }
  auto operands() { return std::tie(a, b, c); }
};

// A Gemm for each group of consecutive rows of a, such as the tokens of each
// expert (grouped GEMM: Gale et al., MegaBlocks, arXiv 2211.15841, section 4).
// `rows` has the number of rows of each group, which may be 0. The groups'
// products have no order, so that threads share all of them.
//
//   transpose_a   group g computes                            stacked by groups
//   false         c_g = alpha a_g op(b_g) + beta c_g          rows of a and c;
//                                                             matrices of b
//   true          c_g = alpha a_g^T op(b_g) + beta c_g        rows of a and b;
//                                                             matrices of c
//
// With transpose_a, which sums over the rows of a group, transpose_b is false.
struct GroupedGemm {
  static constexpr std::string_view kName = "GroupedGemm";
  GemmOptions options;
  std::vector<int64_t> rows;
  ConstTensorView a, b;
  TensorView c;

  // The products that change c, at most one for each group. Precondition:
  // Check.
  std::vector<Gemm> Products() const;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return c.element_count() == 0; }
  auto operands() { return std::tie(a, b, c); }
};

// Prepares an operand of GemmFp8: multiplies x [m, n], f32 or bf16, by `scale`
// and rounds it once, to nearest even, to y [m, n] and `transposed` [n, m], of
// fp8_e4m3 or fp8_e5m2; each of the two may be [0, 0], and is not written then.
// Values beyond the largest finite one, and infinities, become that value with
// their sign; a NaN stays a NaN. `amax` becomes the larger of itself and all
// |x|, or NaN if one is NaN. `scale` and `amax` are f32 with one element. All
// devices give the same bits.
struct CastTranspose {
  static constexpr std::string_view kName = "CastTranspose";
  ConstTensorView x, scale;
  TensorView amax, y, transposed;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return x.element_count() == 0; }
  auto operands() { return std::tie(x, scale, amax, y, transposed); }
};

// c = a_inverse b_inverse a b^T, or the same added to c; a is [m, k], b [n, k],
// both fp8 and not both fp8_e5m2; c [m, n] is f32 or bf16. The inverses, 1 /
// scale of CastTranspose, are f32 with one element. A GPU requires sizes that
// are multiples of 16.
struct GemmFp8 {
  static constexpr std::string_view kName = "GemmFp8";
  Fp8GemmOptions options;
  ConstTensorView a, a_inverse, b, b_inverse;
  TensorView c;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return c.element_count() == 0; }
  auto operands() { return std::tie(a, a_inverse, b, b_inverse, c); }
};

// Computes the scales of n operands for the next step (delayed scaling); all
// tensors are f32. The rows of `history` [steps, n] move down by one, the first
// becomes `amax` [n] and the last is dropped; `amax` becomes zeros. An amax
// that is not finite counts as 0. Then, with the largest value of each column,
//   scale = largest / (that 2^margin), at most 2^100; inverse = 1 / scale
// where it is not 0; other scales stay. `largest` [n] is the largest finite
// value of the operand's format. Without history (0 steps) the scale follows
// `amax`, which stays. All devices give the same bits.
struct UpdateScales {
  static constexpr std::string_view kName = "UpdateScales";
  int margin = 0;
  ConstTensorView largest;
  TensorView amax, history, scale, inverse;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return largest.element_count() == 0; }
  auto operands() { return std::tie(largest, amax, history, scale, inverse); }
};

using Products =
    OperationList<Gemm, GroupedGemm, CastTranspose, GemmFp8, UpdateScales>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_PRODUCTS_H_
