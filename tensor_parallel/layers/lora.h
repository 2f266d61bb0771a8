// LoraAdapter: the trained part of a linear layer whose own weights are frozen,
//
//   y = x w^T + (alpha / rank) (x a^T) b^T
//
// with a [rank, in] and b [out, rank] (Hu et al., LoRA: Low-Rank Adaptation of
// Large Language Models, arXiv 2106.09685, section 4.1). b is initialised to
// zeros, so that the first output is that of the frozen layer. Each projection
// of a fused matrix (FusedPart) has its own adapter, as separate layers would:
// a is [parts * rank, in].
//
//   ColumnParallelLinear::Create(
//       group, {.in = 512, .out = 2048, .lora = {.rank = 8, .alpha = 16}});
//
// Experts whose matrices are stacked by rows have an adapter for each matrix.
//
// Over tensor ranks b is divided like the rows of w, or a like its columns.
// Every rank has the other factor whole, and its gradient is summed over the
// ranks once a step. Of a matrix that every rank has whole, both factors are
// whole; their gradients are summed only under sequence parallelism, where a
// rank has only its own tokens.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_LORA_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_LORA_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct LoraOptions {
  int64_t rank = 0;  // 0: no adapter.
  double alpha = 1;

  double scale() const { return alpha / static_cast<double>(rank); }
  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

// The names of the factors end with these.
inline constexpr std::string_view kLoraA = "lora_a";
inline constexpr std::string_view kLoraB = "lora_b";
bool IsLoraFactor(std::string_view parameter);

// The projections whose weights a rank holds in one parameter.
struct LoraProjections {
  std::vector<IndexRange> outputs = {};  // Ranges of held rows.
  // With experts, the index of the first held projection, and the number of
  // projections on all ranks. 0: the held ones.
  int64_t first = 0;
  int64_t all = 0;
};

class LoraAdapter {
 public:
  // The dimension of the layer's weight matrix that is divided among the ranks.
  enum class Divided { kRows, kColumns, kNone };

  // InvalidArgument if options.rank is not positive or alpha is not finite.
  static absl::StatusOr<LoraAdapter> Create(const TensorGroup& group,
                                            const LoraOptions& options,
                                            const Parameter& weight,
                                            Divided divided,
                                            LoraProjections projections);

  Parameter& a() { return a_; }
  Parameter& b() { return b_; }
  // Names the factors "prefix.lora_a" and "prefix.lora_b", and appends them.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);
  // FailedPrecondition, with the name, if a factor (or its gradient) is
  // released.
  absl::Status CheckValues() const;
  absl::Status CheckGradients() const;

  // For some tokens, these add to y, to x_gradient, and to the gradients of a
  // and b. y has the outputs of all held projections, or of one `projection`.
  absl::Status AddForward(ConstTensorView x, TensorView y,
                          std::optional<int64_t> projection = std::nullopt);
  absl::Status AddInputGradient(
      ConstTensorView y_gradient, TensorView x_gradient,
      std::optional<int64_t> projection = std::nullopt);
  absl::Status AddWeightGradients(
      ConstTensorView y_gradient, ConstTensorView x,
      std::optional<int64_t> projection = std::nullopt);

  // Call it after the last backward of a step: sums the gradients of factors
  // that every rank has over the ranks. A collective. With experts it may be
  // called several times in a step that accumulates gradients in place.
  absl::Status FinishGradients();

 private:
  LoraAdapter(const TensorGroup& group, const LoraOptions& options,
              std::vector<IndexRange> outputs, Parameter a, Parameter b)
      : group_(group),
        options_(options),
        outputs_(std::move(outputs)),
        a_(std::move(a)),
        b_(std::move(b)) {}

  // A projection's rows of b, columns of y, and columns of x a^T.
  struct Place {
    IndexRange outputs, y_columns, factors;
  };
  Parameter& shared() { return a_.replicated() ? a_ : b_; }
  // True if the ranks' parts of the shared factor's gradient are kept apart
  // until they are summed: the state of experts may have one shard rank, whose
  // gradients stay in place when those of other parameters are reduced.
  bool SumsApart() const { return group_.size() > 1 && a_.expert_parallel(); }
  absl::StatusOr<TensorView> Unsummed();
  absl::StatusOr<TensorView> GradientOf(Parameter& factor);
  std::vector<Place> PlacesOf(std::optional<int64_t> projection) const;
  IndexRange FactorsOf(std::optional<int64_t> projection) const;
  absl::StatusOr<TensorView> Reduced(ReusableTensor& memory,
                                     const ConstTensorView& tokens,
                                     std::optional<int64_t> projection);
  absl::StatusOr<TensorView> InputTimesA(ConstTensorView x,
                                         std::optional<int64_t> projection);
  absl::StatusOr<TensorView> GradientTimesB(ConstTensorView y_gradient,
                                            std::optional<int64_t> projection);

  TensorGroup group_;
  LoraOptions options_;
  std::vector<IndexRange> outputs_;  // By projection; rows of b.
  Parameter a_;
  Parameter b_;
  ReusableTensor input_ = group_.Working("x times LoRA's a");
  ReusableTensor gradient_ = group_.Working("y's gradient times LoRA's b");
  // Kept between micro-batches, and so not shared with other adapters.
  ReusableTensor unsummed_{group_.memory(), group_.queue()};
  bool has_unsummed_ = false;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_LORA_H_
