#include "tools/train/launch/product_memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "base/tensor/tensor.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/train/loop/process_memory.h"
#include "tools/train/predict/stage_shapes.h"

namespace tessera::train {
namespace {

// More of a side packs nothing more in any kernel; less than the short one may
// go another way.
constexpr int64_t kLongSide = 20480;
constexpr int64_t kDepth = 1024;
constexpr int64_t kShortSide = 32;
constexpr int64_t kQueries = 512;

using Product = std::array<int64_t, 3>;  // m, n, k.

// Of a layer y = x w^T: y, and the gradients of x and w.
void AddLayer(int64_t tokens, int64_t in, int64_t out,
              std::set<Product>& products) {
  for (const auto& [m, n, k] :
       {Product{tokens, out, in}, {tokens, in, out}, {out, in, tokens}}) {
    const int64_t depth = std::min(k, kDepth);
    products.insert({std::min(m, kLongSide), std::min(n, kShortSide), depth});
    products.insert({std::min(m, kShortSide), std::min(n, kLongSide), depth});
  }
}

std::set<Product> ProductsOf(const StageShapes& s) {
  std::set<Product> products;
  AddLayer(s.tokens, s.hidden, s.qkv, products);
  AddLayer(s.tokens, s.query, s.hidden, products);
  AddLayer(s.tokens, s.hidden, s.gate_up, products);
  AddLayer(s.tokens, s.intermediate, s.hidden, products);
  if (s.is_last) AddLayer(s.tokens, s.hidden, s.vocabulary, products);
  return products;
}

// Operands are zeros that nobody writes, which take no memory.
class Arithmetic {
 public:
  explicit Arithmetic(int threads) : ops_({.threads = threads}) {}

  absl::Status Run(const StageShapes& shapes) {
    for (const auto& [m, n, k] : ProductsOf(shapes)) {
      if (m == 0 || n == 0 || k == 0) continue;
      TESSERA_RETURN_IF_ERROR(Multiply(shapes.dtype, m, n, k));
    }
    return shapes.heads > 0 && shapes.kv_heads > 0 ? Attend(shapes)
                                                   : absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> Zeros(DType dtype,
                               const std::vector<int64_t>& shape) const {
    return Tensor::Create(dtype, shape, zeros_);
  }
  // What is written is given back to the system at once.
  static absl::StatusOr<Tensor> Result(DType dtype,
                                       const std::vector<int64_t>& shape) {
    return Tensor::Create(dtype, shape, std::make_shared<CountingMemory>());
  }

  absl::Status Multiply(DType dtype, int64_t m, int64_t n, int64_t k) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor a, Zeros(dtype, {m, k}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor b, Zeros(dtype, {n, k}));
    TESSERA_ASSIGN_OR_RETURN(Tensor c, Result(dtype, {m, n}));
    return ops_.Gemm({.transpose_b = true}, a.view(), b.view(), c.view());
  }

  // Of the heads that share a pair of keys and values.
  absl::Status Attend(const StageShapes& s) {
    const int64_t queries =
        std::min(s.positions[static_cast<size_t>(s.context_rank)], kQueries);
    const int64_t heads = s.heads / s.kv_heads;
    std::vector<int64_t> positions(static_cast<size_t>(queries));
    std::iota(positions.begin(), positions.end(), 0);
    TESSERA_ASSIGN_OR_RETURN(const Tensor q,
                             Zeros(s.dtype, {queries, heads, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor k,
                             Zeros(s.dtype, {queries, 1, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(
        Tensor output, Result(s.statistics, {queries, heads, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(Tensor pair,
                             Result(s.statistics, {2, queries, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(Tensor numbers,
                             Result(s.statistics, {queries, heads}));
    const tensor_parallel::AttentionBlock block = {.query = q.view(),
                                                   .key = k.view(),
                                                   .value = k.view(),
                                                   .query_positions = positions,
                                                   .key_positions = positions};
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    TESSERA_RETURN_IF_ERROR(ops_.Fill(0, output.view()));
    TESSERA_RETURN_IF_ERROR(ops_.Fill(kNothing, numbers.view()));
    TESSERA_RETURN_IF_ERROR(
        ops_.Attend(block, {output.view(), numbers.view()}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor delta,
                             Zeros(s.statistics, {queries, heads}));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView key_gradient,
        pair.view().Reshape({{2, queries, 1, s.head_size}}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView of_keys,
                             key_gradient.Select(0, 0));
    TESSERA_ASSIGN_OR_RETURN(const TensorView of_values,
                             key_gradient.Select(0, 1));
    return ops_.AttendGradient(block, {.output_gradient = q.view(),
                                       .log_sum_exp = numbers.view(),
                                       .delta = delta.view(),
                                       .query_gradient = output.view(),
                                       .key_gradient = of_keys,
                                       .value_gradient = of_values});
  }

  const std::shared_ptr<CountingMemory> zeros_ =
      std::make_shared<CountingMemory>();
  tensor_parallel::CpuOps ops_;
};

absl::StatusOr<StageShapes> ShapesOf(const RunOptions& run) {
  // All kinds of layers.
  return StageShapes::Of(run, {},
                         {.layers = {0, 1}, .is_first = true, .is_last = true});
}

}  // namespace

absl::StatusOr<int64_t> MeasureProducts(const RunOptions& small,
                                        const RunOptions& run, int threads) {
  TESSERA_ASSIGN_OR_RETURN(const StageShapes small_shapes, ShapesOf(small));
  TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes, ShapesOf(run));
  Arithmetic arithmetic(threads);
  TESSERA_RETURN_IF_ERROR(arithmetic.Run(small_shapes));
  const int64_t before = ReadProcessMemory().resident;
  TESSERA_RETURN_IF_ERROR(arithmetic.Run(shapes));
  return std::max<int64_t>(ReadProcessMemory().resident - before, 0);
}

}  // namespace tessera::train
