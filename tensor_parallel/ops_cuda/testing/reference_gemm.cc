// The emulation's CudaGemm: the textbook loop instead of cuBLASLt.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "base/dtype/small_float.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

// Row i of the [rows, columns] matrix op(x), in the type of sums.
template <typename T>
void ReadRow(const ConstTensorView& x, bool transposed, int64_t i,
             std::vector<StatisticOf<T>>& row) {
  const T* const data = reinterpret_cast<const T*>(x.data());
  const int64_t stride = x.strides()[0];
  for (int64_t j = 0; j < static_cast<int64_t>(row.size()); ++j) {
    row[j] = ConvertValue<StatisticOf<T>>(
        data[transposed ? j * stride + i : i * stride + j]);
  }
}

// Every element is summed in the order of k.
template <typename A, typename B, typename Result>
void Multiply(const GemmOptions& options, const ConstTensorView& a,
              const ConstTensorView& b, const TensorView& c) {
  using Sum = StatisticOf<A>;
  const int64_t m = c.shape()[0], n = c.shape()[1];
  const int64_t k = a.shape()[options.transpose_a ? 0 : 1];
  const auto alpha = static_cast<Sum>(options.alpha),
             beta = static_cast<Sum>(options.beta);
  const int64_t common = alpha == 0 ? 0 : k;
  std::vector<Sum> factor(common * n);
  std::vector<Sum> row(n), a_row(common), sums(n);
  for (int64_t l = 0; l < common; ++l) {
    ReadRow<B>(b, options.transpose_b, l, row);
    std::copy(row.begin(), row.end(), factor.begin() + l * n);
  }
  for (int64_t i = 0; i < m; ++i) {
    ReadRow<A>(a, options.transpose_a, i, a_row);
    std::fill(sums.begin(), sums.end(), Sum{0});
    for (int64_t l = 0; l < common; ++l) {
      const Sum* const b_row = factor.data() + l * n;
      for (int64_t j = 0; j < n; ++j) sums[j] += a_row[l] * b_row[j];
    }
    Result* const result =
        reinterpret_cast<Result*>(c.data()) + i * c.strides()[0];
    for (int64_t j = 0; j < n; ++j) {
      const Sum before = beta == 0 ? 0 : beta * ConvertValue<Sum>(result[j]);
      result[j] = ConvertValue<Result>(alpha * sums[j] + before);
    }
  }
}

template <typename A, typename B>
void MultiplyFp8(const GemmOptions& options, const ConstTensorView& a,
                 const ConstTensorView& b, const TensorView& c) {
  if (c.dtype() == DType::kBF16) {
    Multiply<A, B, BF16>(options, a, b, c);
  } else {
    Multiply<A, B, float>(options, a, b, c);
  }
}

class ReferenceGemm final : public CudaGemm {
 public:
  absl::Status Run(KernelStream, const GemmOptions& options,
                   const ConstTensorView& a, const ConstTensorView& b,
                   const TensorView& c) override {
    if (c.element_count() == 0) return absl::OkStatus();
    const DType from = a.dtype(), to = c.dtype();
    if (from == DType::kF64 && to == from) {
      Multiply<double, double, double>(options, a, b, c);
    } else if (from == DType::kF32 && to == from) {
      Multiply<float, float, float>(options, a, b, c);
    } else if (from == DType::kBF16 && to == from) {
      Multiply<BF16, BF16, BF16>(options, a, b, c);
    } else if (from == DType::kBF16 && to == DType::kF32) {
      Multiply<BF16, BF16, float>(options, a, b, c);
    } else if (from == DType::kF16 && to == from) {
      Multiply<F16, F16, F16>(options, a, b, c);
    } else if (from == DType::kF16 && to == DType::kF32) {
      Multiply<F16, F16, float>(options, a, b, c);
    } else {
      return absl::UnimplementedError(
          absl::StrCat("Gemm of ", DTypeName(from), " to ", DTypeName(to),
                       "; it may be of f64, f32, bf16, f16, or of these two "
                       "to f32"));
    }
    return absl::OkStatus();
  }

  absl::Status RunFp8(KernelStream, const Fp8GemmOptions& options,
                      const ConstTensorView& a,
                      const ConstTensorView& a_inverse,
                      const ConstTensorView& b,
                      const ConstTensorView& b_inverse,
                      const TensorView& c) override {
    if (c.element_count() == 0) return absl::OkStatus();
    const GemmOptions scaled = {
        .transpose_b = true,
        .alpha = *DataOf<float>(a_inverse) * *DataOf<float>(b_inverse),
        .beta = options.accumulate ? 1.0 : 0.0};
    if (a.dtype() == DType::kF8E5M2) {
      MultiplyFp8<F8E5M2, F8E4M3>(scaled, a, b, c);
    } else if (b.dtype() == DType::kF8E5M2) {
      MultiplyFp8<F8E4M3, F8E5M2>(scaled, a, b, c);
    } else {
      MultiplyFp8<F8E4M3, F8E4M3>(scaled, a, b, c);
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::Create(Queue&) {
  return std::make_unique<ReferenceGemm>();
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
