// The vector kernels of CpuOps. Each Run function uses the best instruction set
// of the processor. Results have the same bits on every instruction set and for
// every division of the rows (for sums of rows, of the columns) among jobs. The
// callers check the jobs. Internal to tensor_parallel/ops_cpu.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_KERNELS_H_

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/dtype/dtype.h"
#include "tensor_parallel/ops/glu.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

// An untyped view of a matrix, or of a vector as a single row. `Byte` is
// std::byte or const std::byte.
template <typename Byte>
class BasicRowsView {
 public:
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  BasicRowsView() = default;
  // `view` has one or two dimensions.
  explicit BasicRowsView(const BasicTensorView<Byte>& view)
      : data_(view.data()), stride_(view.rank() == 2 ? view.strides()[0] : 0) {}
  BasicRowsView(Byte* data, int64_t stride) : data_(data), stride_(stride) {}

  // The number of elements from one row to the next.
  int64_t stride() const { return stride_; }

  template <typename T>
  Like<T>* row(int64_t index) const {
    return reinterpret_cast<Like<T>*>(data_) + index * stride_;
  }

 private:
  Byte* data_ = nullptr;
  int64_t stride_ = 0;
};

using RowsView = BasicRowsView<std::byte>;
using ConstRowsView = BasicRowsView<const std::byte>;

// The type of sums and statistics of values of type T.
template <typename T>
using StatisticOf =
    std::conditional_t<std::is_same_v<T, double>, double, float>;

struct ElementwiseJob {
  enum class Step {
    kAddToRows,  // y[i] += x[0]
    kAdd,        // y[i] += x[i]
    kScale,      // y[i] *= factor
    kSoftCap,    // y[i] = cap * tanh(factor / cap * y[i])
    kScaleRows,  // y[i] = z[0][i] * x[i], z of statistics
    kCast,       // y[i] = x[i]
    kSumRows,    // y[0] += the sum of x[i]
    kDots,       // y[0][i] = the sum of x[i] * z[i]
  };
  Step step = Step::kAdd;
  DType x_type = DType::kF32;
  DType y_type =
      DType::kF32;  // The type of statistics or x_type; for kDots, z's.
  IndexRange rows = {};
  int64_t n = 0;
  IndexRange columns = {};  // Sums of rows compute these columns.
  double factor = 1;
  double cap = 1;
  ConstRowsView x = {};
  ConstRowsView z = {};
  RowsView y = {};
};

void RunElementwise(const ElementwiseJob& job);

struct GluJob {
  GluKind kind = GluKind::kSwiGlu;
  bool backward = false;
  DType dtype = DType::kF32;
  IndexRange rows = {};
  int64_t n = 0;
  ConstRowsView gate = {};
  ConstRowsView up = {};
  ConstRowsView gradient = {};
  RowsView y = {};  // Forward.
  RowsView gate_gradient = {};
  RowsView up_gradient = {};
};

void RunGlu(const GluJob& job);

struct NormJob {
  enum class Step {
    kForward,
    kAddForward,  // The forward of x += residual.
    kSums,        // The sums of the forward.
    kForwardOf,   // The forward with given sums.
    kInputGradient,
    kAddInputGradient,  // Adds residual to the result.
    kGradientSums,      // The sums of the gradient.
    kInputGradientOf,   // The gradient with given sums.
    kWeightGradient,
  };
  Step step = Step::kForward;
  DType dtype = DType::kF32;
  DType target_type = DType::kF32;  // The type of the weight's gradient.
  double epsilon = 0;
  IndexRange rows = {};
  int64_t n = 0;
  int64_t width = 0;        // Of the norm: n, or more with given sums.
  IndexRange columns = {};  // Sums of rows compute these columns.
  ConstRowsView gradient = {};
  ConstRowsView x = {};
  ConstRowsView weight = {};
  ConstRowsView residual = {};  // The residual or its gradient.
  RowsView sum = {};            // The updated x of kAddForward.
  RowsView sums = {};           // Statistics, given or computed.
  RowsView inverse = {};        // Statistics; only the forwards write them.
  RowsView y = {};              // The result: y or the requested gradient.
};

void RunNorm(const NormJob& job);

// Rotates the first `pairs` pairs of all heads of a token.
struct RotaryJob {
  DType dtype = DType::kF32;
  bool inverse = false;
  int64_t heads = 0;
  int64_t pairs = 0;
  const void* table = nullptr;  // Statistics: the cosines, then the sines.
  RowsView x = {};
};

void RunRotary(const RotaryJob& job);

// Adds some rows of `gradient` to the one row of `target`.
struct AddRowsJob {
  DType dtype = DType::kF32;
  DType target_type = DType::kF32;
  int64_t n = 0;
  ConstRowsView gradient = {};
  std::span<const int64_t> rows = {};
  RowsView target = {};
};

void RunAddRows(const AddRowsJob& job);

struct CrossEntropyJob {
  enum class Step { kMax, kSumExp, kPick, kGradient };
  Step step = Step::kMax;
  DType dtype = DType::kF32;
  IndexRange rows = {};
  IndexRange held = {};
  ConstRowsView logits = {};
  ConstRowsView largest = {};  // Statistics, as the next two.
  ConstRowsView sum = {};
  RowsView result = {};  // For kGradient, the logits.
  std::span<const int64_t> targets = {};
  std::span<const double> scales = {};
  double label_smoothing = 0;  // LossTerms, as the next two.
  double z_loss = 0;
  int64_t vocabulary = 0;
  double cap = 0;
};

void RunCrossEntropy(const CrossEntropyJob& job);

// A tile of products of queries and keys with `stride` elements from row to
// row, a multiple of 64; rows can be read and written up to the stride. The
// scores are `scale` times the products; if `cap` is not 0, the products were
// replaced by capped scores, and `scale` is 1. The first counts[i] keys of row
// i are visible; the weights after these, up to `width`, are zero. T is the
// type of the factors of products, to which weights are rounded. Weights of f32
// and f64 may overwrite the products.
template <typename T>
struct ScoreTile {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t stride = 0;
  StatisticOf<T> scale = 1;
  StatisticOf<T> cap = 0;
  StatisticOf<T> slope = 1;  // The scale before the cap.
  const int64_t* counts = nullptr;
  const StatisticOf<T>* products = nullptr;
  T* weights = nullptr;
};

// Computes the weights exp(score - largest), where `largest` is the maximum
// over this tile and earlier ones. Adds them to `sum`, after scaling `sum` and
// the rows of `output` [rows, d] to the new `largest`.
template <typename T>
struct SoftmaxJob {
  using S = StatisticOf<T>;

  ScoreTile<T> tile;
  S* largest = nullptr;
  S* sum = nullptr;
  S* output = nullptr;
  int64_t d = 0;
};

// Computes the weights p = exp(score - log_sum_exp) and the gradients of the
// tile's products, slope p (g - delta), where g are the products of the
// output's gradient and the values, in the layout of the tile, and with a cap
// also times 1 - (score / cap)^2. The gradients
// may overwrite g, as weights may overwrite products.
template <typename T>
struct SoftmaxGradientJob {
  using S = StatisticOf<T>;

  ScoreTile<T> tile;
  const S* log_sum_exp = nullptr;
  const S* delta = nullptr;
  const S* weight_gradients = nullptr;
  T* product_gradients = nullptr;
};

template <typename T>
void RunSoftmax(const SoftmaxJob<T>& job);
template <typename T>
void RunSoftmaxGradient(const SoftmaxGradientJob<T>& job);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_KERNELS_H_
