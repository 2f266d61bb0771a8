#include "tensor_parallel/ops_cuda/cudnn_plans.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

constexpr cudnnDataType_t kBF16 = CUDNN_DATA_BFLOAT16;
constexpr cudnnDataType_t kF32 = CUDNN_DATA_FLOAT;
constexpr cudnnDataType_t kI32 = CUDNN_DATA_INT32;

absl::Status CheckShape(const CudnnAttentionShape& shape,
                        int64_t largest_head_size) {
  if (shape.sequences < 1 || shape.queries < 1 || shape.keys < 1 ||
      shape.heads < 1 || shape.kv_heads < 1 ||
      shape.heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cuDNN attention of ", shape.sequences, " sequences, ", shape.queries,
        " queries, ", shape.keys, " keys, ", shape.heads, " heads and ",
        shape.kv_heads,
        " key heads: sizes should be positive and heads a multiple of key "
        "heads"));
  }
  if (shape.head_size < 8 || shape.head_size % 8 != 0 ||
      shape.head_size > largest_head_size) {
    return absl::UnimplementedError(absl::StrCat(
        "cuDNN attention with a head size of ", shape.head_size,
        ": it should be a multiple of 8 up to ", largest_head_size));
  }
  if (shape.causal && shape.queries > shape.keys) {
    return absl::UnimplementedError(absl::StrCat(
        "causal cuDNN attention of ", shape.queries, " queries and ",
        shape.keys, " keys: queries that see no key are not supported"));
  }
  return absl::OkStatus();
}

CudnnDims Sizes(const CudnnAttentionShape& shape, int64_t positions,
                int64_t heads) {
  return {shape.sequences, heads, positions, shape.head_size};
}

CudnnDims Strides(const CudnnStrides& strides) {
  return {strides.sequence, strides.head, strides.position, 1};
}

CudnnDims Transposed(CudnnDims dims) {
  std::swap(dims[2], dims[3]);
  return dims;
}

// The parts that the graphs of both directions have in common.
class AttentionGraph {
 public:
  AttentionGraph(const CudnnAttentionShape& shape,
                 const CudnnAttentionStrides& strides)
      : shape_(shape),
        strides_(strides),
        query_(graph_.Real(kCudnnQuery, kBF16, QuerySizes(),
                           Strides(strides.query))),
        transposed_key_(graph_.Real(kCudnnKey, kBF16, Transposed(KeySizes()),
                                    Transposed(Strides(strides.key)))),
        scale_(graph_.ByValue(kCudnnScale, kF32)) {}

  CudnnDims QuerySizes() const {
    return Sizes(shape_, shape_.queries, shape_.heads);
  }
  CudnnDims KeySizes() const {
    return Sizes(shape_, shape_.keys, shape_.kv_heads);
  }
  CudnnDims ScoreSizes() const {
    return {shape_.sequences, shape_.heads, shape_.queries, shape_.keys};
  }
  CudnnDims RowSizes() const {
    return {shape_.sequences, shape_.heads, shape_.queries, 1};
  }

  CudnnTensor Queries(int64_t id, const CudnnStrides& strides) {
    return graph_.Real(id, kBF16, QuerySizes(), Strides(strides));
  }
  CudnnTensor Keys(int64_t id, const CudnnStrides& strides) {
    return graph_.Real(id, kBF16, KeySizes(), Strides(strides));
  }
  CudnnTensor RealRow(int64_t id) {
    return graph_.Real(id, kF32, RowSizes(), RowMajorStrides(RowSizes()));
  }

  CudnnTensor Scores(cudnnDataType_t type = kF32) {
    return graph_.Virtual(type, ScoreSizes());
  }
  // Scores with queries and keys exchanged, in bf16 for a product.
  CudnnTensor TransposedScores(CudnnTensor scores) {
    const CudnnTensor transposed =
        graph_.Virtual(kBF16, Transposed(ScoreSizes()),
                       Transposed(RowMajorStrides(ScoreSizes())));
    graph_.Reshape(scores, transposed);
    return transposed;
  }

  CudnnTensor ScaledProducts() {
    const CudnnTensor products = Scores();
    graph_.Matmul(query_, transposed_key_, products);
    return Scaled(products);
  }

  CudnnTensor Scaled(CudnnTensor scores) {
    const CudnnTensor scaled = Scores();
    graph_.Pointwise(CUDNN_POINTWISE_MUL, scores, scale_, scaled);
    return scaled;
  }

  // Scores of keys that a query does not see become minus infinity.
  CudnnTensor Masked(CudnnTensor scores) {
    if (!shape_.causal) return scores;
    CudnnTensor row = Scores(kI32);
    graph_.Index(2, scores, row);
    const CudnnTensor column = Scores(kI32);
    graph_.Index(3, scores, column);
    if (shape_.queries != shape_.keys) row = Shifted(row);
    const CudnnTensor is_seen = Scores(CUDNN_DATA_BOOLEAN);
    graph_.Pointwise(CUDNN_POINTWISE_CMP_GE, row, column, is_seen,
                     CUDNN_DATA_BOOLEAN);
    const CudnnTensor masked = Scores();
    graph_.Select(scores, graph_.ByValue(kCudnnMasked, kF32), is_seen, masked);
    return masked;
  }

  CudnnGraphBuilder& graph() { return graph_; }
  CudnnTensor query() const { return query_; }
  CudnnTensor transposed_key() const { return transposed_key_; }
  const CudnnAttentionStrides& strides() const { return strides_; }

 private:
  CudnnTensor Shifted(CudnnTensor row) {
    const CudnnTensor up = Scores(kI32), down = Scores(kI32);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, row, graph_.ByValue(kCudnnKeys, kI32),
                     up, kI32);
    graph_.Pointwise(CUDNN_POINTWISE_SUB, up,
                     graph_.ByValue(kCudnnQueries, kI32), down, kI32);
    return down;
  }

  const CudnnAttentionShape shape_;
  const CudnnAttentionStrides strides_;
  CudnnGraphBuilder graph_;
  const CudnnTensor query_;
  const CudnnTensor transposed_key_;
  const CudnnTensor scale_;
};

// probabilities = exp(scores - max) / sum; log_sum_exp = max + log(sum).
CudnnTensor Softmax(AttentionGraph& attention, CudnnTensor scores) {
  CudnnGraphBuilder& graph = attention.graph();
  const CudnnDims rows = attention.RowSizes();
  const CudnnTensor largest = graph.Virtual(kF32, rows);
  graph.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const CudnnTensor shifted = attention.Scores();
  graph.Pointwise(CUDNN_POINTWISE_SUB, scores, largest, shifted);
  const CudnnTensor exponentials = attention.Scores();
  graph.Pointwise(CUDNN_POINTWISE_EXP, shifted, exponentials);
  const CudnnTensor sum = graph.Virtual(kF32, rows);
  graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
  const CudnnTensor logarithm = graph.Virtual(kF32, rows);
  graph.Pointwise(CUDNN_POINTWISE_LOG, sum, logarithm);
  graph.Pointwise(CUDNN_POINTWISE_ADD, largest, logarithm,
                  attention.RealRow(kCudnnLogSumExp));
  const CudnnTensor probabilities = attention.Scores(kBF16);
  graph.Pointwise(CUDNN_POINTWISE_DIV, exponentials, sum, probabilities);
  return probabilities;
}

// The gradient of a key or value from that of every query head: products of
// transposed scores and `factor`, summed over the heads of a group.
void AddKeyGradient(AttentionGraph& attention, const CudnnAttentionShape& shape,
                    CudnnTensor scores, CudnnTensor factor, int64_t id,
                    const CudnnStrides& strides) {
  CudnnGraphBuilder& graph = attention.graph();
  const CudnnTensor transposed = attention.TransposedScores(scores);
  const CudnnTensor gradient = attention.Keys(id, strides);
  if (shape.heads == shape.kv_heads) {
    graph.Matmul(transposed, factor, gradient);
    return;
  }
  const CudnnTensor of_heads =
      graph.Virtual(kBF16, Sizes(shape, shape.keys, shape.heads));
  graph.Matmul(transposed, factor, of_heads);
  graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, of_heads, gradient);
}

// Sums of output times its gradient, one for each query and head.
CudnnTensor Dots(AttentionGraph& attention, CudnnTensor output_gradient) {
  CudnnGraphBuilder& graph = attention.graph();
  const CudnnTensor output =
      attention.Queries(kCudnnOutput, attention.strides().output);
  const CudnnTensor products = graph.Virtual(kF32, attention.QuerySizes());
  graph.Pointwise(CUDNN_POINTWISE_MUL, output_gradient, output, products);
  const CudnnTensor sums = graph.Virtual(kF32, attention.RowSizes());
  graph.Reduce(CUDNN_REDUCE_TENSOR_ADD, products, sums);
  const CudnnTensor dots = attention.RealRow(kCudnnDots);
  graph.Pointwise(CUDNN_POINTWISE_MUL, sums, graph.ByValue(kCudnnOne, kF32),
                  dots);
  return dots;
}

void AddQueryGradient(AttentionGraph& attention, CudnnTensor score_gradient,
                      bool deterministic) {
  CudnnGraphBuilder& graph = attention.graph();
  const CudnnTensor key = graph.Virtual(kBF16, attention.KeySizes(),
                                        Strides(attention.strides().key));
  graph.Reshape(attention.transposed_key(), key);
  const CudnnTensor gradient = attention.Queries(
      kCudnnQueryGradient, attention.strides().query_gradient);
  if (deterministic) {
    graph.Matmul(score_gradient, key, gradient);
    return;
  }
  // Blocks of keys are added to f32 in an arbitrary order.
  const CudnnTensor sum =
      graph.Real(kCudnnQueryF32, kF32, attention.QuerySizes(),
                 RowMajorStrides(attention.QuerySizes()));
  graph.Matmul(score_gradient, key, sum);
  graph.Pointwise(CUDNN_POINTWISE_IDENTITY, sum, gradient);
}

}  // namespace

CudnnStrides PackedStrides(int64_t positions, int64_t heads,
                           int64_t head_size) {
  return {.sequence = positions * heads * head_size,
          .position = heads * head_size,
          .head = head_size};
}

CudnnAttentionStrides CudnnAttentionStrides::Packed(
    const CudnnAttentionShape& shape) {
  const CudnnStrides queries =
      PackedStrides(shape.queries, shape.heads, shape.head_size);
  const CudnnStrides keys =
      PackedStrides(shape.keys, shape.kv_heads, shape.head_size);
  return {queries, keys, keys, queries, queries, queries, keys, keys};
}

absl::StatusOr<CudnnPlan> BuildForwardPlan(const CudnnAttentionShape& shape,
                                           const CudnnAttentionStrides& strides,
                                           const CudnnDescriptor& device) {
  TESSERA_RETURN_IF_ERROR(CheckShape(shape, /*largest_head_size=*/256));
  AttentionGraph attention(shape, strides);
  const CudnnTensor scores = attention.Masked(attention.ScaledProducts());
  const CudnnTensor probabilities = Softmax(attention, scores);
  CudnnGraphBuilder& graph = attention.graph();
  // cuDNN 9 also compiles a plan for an output of f32, but writes bf16 then.
  graph.Matmul(probabilities, attention.Keys(kCudnnValue, strides.value),
               attention.Queries(kCudnnOutput, strides.output));
  return std::move(graph).Build(device);
}

absl::StatusOr<CudnnPlan> BuildBackwardPlan(
    const CudnnAttentionShape& shape, const CudnnAttentionStrides& strides,
    bool deterministic, const CudnnDescriptor& device) {
  TESSERA_RETURN_IF_ERROR(CheckShape(shape, /*largest_head_size=*/128));
  AttentionGraph attention(shape, strides);
  CudnnGraphBuilder& graph = attention.graph();
  const CudnnTensor gradient =
      attention.Queries(kCudnnOutputGradient, strides.output_gradient);
  const CudnnTensor dots = Dots(attention, gradient);

  // Recomputes the probabilities from the statistics of the forward.
  const CudnnTensor shifted = attention.Scores();
  graph.Pointwise(CUDNN_POINTWISE_SUB, attention.ScaledProducts(),
                  attention.RealRow(kCudnnLogSumExp), shifted);
  const CudnnTensor masked = attention.Masked(shifted);
  const CudnnTensor probabilities = attention.Scores();
  graph.Pointwise(CUDNN_POINTWISE_EXP, masked, probabilities);
  AddKeyGradient(attention, shape, probabilities, gradient, kCudnnValueGradient,
                 strides.value_gradient);

  const CudnnTensor transposed_value =
      graph.Real(kCudnnValue, kBF16, Transposed(attention.KeySizes()),
                 Transposed(Strides(strides.value)));
  const CudnnTensor probability_gradient = attention.Scores();
  graph.Matmul(gradient, transposed_value, probability_gradient);
  const CudnnTensor centred = attention.Scores();
  graph.Pointwise(CUDNN_POINTWISE_SUB, probability_gradient, dots, centred);
  const CudnnTensor softmax_gradient = attention.Scores();
  graph.Pointwise(CUDNN_POINTWISE_MUL, centred, probabilities,
                  softmax_gradient);
  const CudnnTensor score_gradient = attention.Scaled(softmax_gradient);
  AddKeyGradient(attention, shape, score_gradient, attention.query(),
                 kCudnnKeyGradient, strides.key_gradient);
  AddQueryGradient(attention, score_gradient, deterministic);
  return std::move(graph).Build(device);
}

}  // namespace tessera::tensor_parallel
