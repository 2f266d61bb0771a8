// Subject: a layer or a block of any kind, as a test of gradients sees it.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_SUBJECT_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

enum class SubjectKind {
  kColumnParallelLinear,
  kRowParallelLinear,
  kRmsNorm,
  kEmbedding,
  kGatedMlp,
  kAttention,
  kTransformerBlock,
  kOutputHead,
  // Experts are those of the context group.
  kMoeMlp,
  kMoeBlock,
};

std::ostream& operator<<(std::ostream& os, SubjectKind kind);

// Sizes that 2, 3, 4 and 8 ranks do not divide; heads are such that these may
// share them, and one of 8 ranks has none.
struct SubjectOptions {
  int64_t width = 10;
  int64_t hidden = 10;
  int64_t head_size = 4;
  int64_t vocabulary = 13;
  int64_t heads = 6;
  int64_t kv_heads = 2;
  bool qk_norm = true;
  int64_t window = 0;
  DType dtype = DType::kF64;
  bool sequence_parallel = false;
  int64_t overlap_chunks = 0;
  bool bias = true;
  double dropout = 0;  // Of blocks.
  // Of mixtures, whose experts are 8: terms of gradients that are not those of
  // the output.
  bool balance = false;
  RouterScore score = RouterScore::kSoftmax;
  Recompute recompute = Recompute::kNone;

  // For `ranks` of the tensor group: 3 cannot share 2 heads.
  void SetHeadsFor(int64_t ranks);
};

// One micro-batch at a time, in the order of the passes.
class Subject {
 public:
  virtual ~Subject() = default;

  // The width of y, and whether y has all tokens under sequence parallelism,
  // too.
  virtual int64_t out_width() const = 0;
  virtual DType out_dtype() const = 0;
  virtual bool whole_output() const { return false; }

  virtual void AppendParameters(std::vector<Parameter*>& parameters) = 0;
  virtual absl::Status Forward(int64_t sequences, ConstTensorView x,
                               TensorView y) = 0;
  virtual absl::Status BackwardInput(ConstTensorView y_gradient,
                                     TensorView x_gradient) = 0;
  virtual absl::Status BackwardWeight() = 0;
  virtual absl::Status Backward(ConstTensorView y_gradient,
                                TensorView x_gradient) = 0;
  virtual absl::Status FinishGradients() = 0;
  // Held between the passes.
  virtual int64_t bytes() const { return 0; }
};

// `pool` must outlive it.
absl::StatusOr<std::unique_ptr<Subject>> MakeSubject(
    SubjectKind kind, const TensorGroup& tensor, const ContextGroup& context,
    const SubjectOptions& options, TensorPool& pool);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_SUBJECT_H_
