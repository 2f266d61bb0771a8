// OperandShapes: refuses what attention over ranks cannot work on, before
// anything has moved. Internal to this folder.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_OPERAND_SHAPES_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_OPERAND_SHAPES_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

class OperandShapes {
 public:
  // The options, with their scale. InvalidArgument where the layout is not of
  // the group's ranks, a count is below 1, kv heads do not divide the heads, or
  // the type is none of f64, f32 and bf16.
  static absl::StatusOr<ContextAttentionOptions> CheckOptions(
      const TensorGroup& group, const SequenceLayout& layout,
      const ContextAttentionOptions& options);

  // Of a rank that has so many positions; the options were checked.
  OperandShapes(int64_t rank, int64_t positions,
                const ContextAttentionOptions& options)
      : rank_(rank), positions_(positions), options_(options) {}

  absl::Status CheckForward(const ContextAttention::Inputs& inputs,
                            const ConstTensorView& output,
                            const ConstTensorView& log_sum_exp) const;
  absl::Status CheckBackward(
      const ContextAttention::Inputs& inputs, const ConstTensorView& output,
      const ConstTensorView& log_sum_exp,
      const ConstTensorView& output_gradient,
      const ContextAttention::Gradients& gradients) const;

 private:
  absl::Status Check(std::string_view name, const ConstTensorView& x,
                     DType dtype, std::span<const int64_t> shape) const;
  absl::Status CheckHeads(std::string_view name, const ConstTensorView& x,
                          int64_t heads) const;

  int64_t rank_;
  int64_t positions_;
  ContextAttentionOptions options_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_OPERAND_SHAPES_H_
