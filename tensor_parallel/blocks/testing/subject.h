// Subject: the interface of layers and blocks of any kind for tests of
// gradients.
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
  // The context group is also the expert group.
  kMoeMlp,
  kMoeBlock,
  // With SubjectOptions::heads heads.
  kLatentAttention,
  kLatentBlock,
};

std::ostream& operator<<(std::ostream& os, SubjectKind kind);

// Sizes that 2, 3, 4 and 8 ranks do not divide. The numbers of heads are valid
// for these ranks, and one of 8 ranks has no heads.
struct SubjectOptions {
  int64_t width = 10;
  int64_t hidden = 10;
  int64_t head_size = 4;
  int64_t vocabulary = 13;
  int64_t heads = 6;
  int64_t kv_heads = 2;
  bool qk_norm = true;
  // For latent attention, whose values are smaller than keys if it is not 0.
  int64_t query_rank = 3;
  int64_t window = 0;
  DType dtype = DType::kF64;
  bool bias = true;
  double dropout = 0;  // Only for blocks.
  // For mixtures, which have 8 experts: adds the balance terms to the
  // gradients.
  bool balance = false;
  double capacity = 0;
  bool padded = false;
  RouterScore score = RouterScore::kSoftmax;
  // Sinks; for mixtures clamped gates, and biases of routers and experts.
  bool like_gpt_oss = false;
  // The LoRA rank of MLPs, mixtures and latent attention; 0: no adapters.
  int64_t lora_rank = 0;
  Recompute recompute = Recompute::kNone;

  // Adapts the heads to `ranks` tensor ranks: 3 ranks cannot share 2 kv heads.
  void SetHeadsFor(int64_t ranks);
};

// Processes one micro-batch at a time, in the order of the passes.
class Subject {
 public:
  virtual ~Subject() = default;

  // The width and type of y, and true if y has all tokens even under sequence
  // parallelism.
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
  // The bytes held between the passes.
  virtual int64_t bytes() const { return 0; }
};

// `pool` must outlive the subject.
absl::StatusOr<std::unique_ptr<Subject>> MakeSubject(
    SubjectKind kind, const TensorGroup& tensor, const ContextGroup& context,
    const SubjectOptions& options, TensorPool& pool);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_SUBJECT_H_
