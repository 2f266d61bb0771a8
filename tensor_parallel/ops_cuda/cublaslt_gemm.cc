#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "tensor_parallel/ops_cuda/cublaslt_calls.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/library_workspace.h"
#include "tensor_parallel/ops_cuda/matrix_scale.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

constexpr size_t kWorkspaceAlignment = 256;

absl::StatusCode CodeOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::StatusCode::kResourceExhausted;
    case CUBLAS_STATUS_INVALID_VALUE:
      return absl::StatusCode::kInvalidArgument;
    case CUBLAS_STATUS_ARCH_MISMATCH:
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return absl::StatusCode::kUnimplemented;
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status CublasStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::Status(CodeOf(status),
                      absl::StrCat(what, ": ", cublasLtGetStatusName(status),
                                   ": ", cublasLtGetStatusString(status)));
}

// A matrix as cuBLASLt sees it: column-major, so that its columns are our rows.
struct Matrix {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0;
  uint64_t columns = 0;
  int64_t stride = 0;  // From column to column.
  // The largest power of two up to 256 that divides the address.
  uint32_t alignment = 256;

  friend bool operator==(const Matrix&, const Matrix&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Matrix& m) {
    return H::combine(std::move(hash), m.type, m.rows, m.columns, m.stride,
                      m.alignment);
  }
};

// The distances in elements between the matrices of a batch of products.
struct Steps {
  int64_t first = 0, second = 0, result = 0;

  friend bool operator==(const Steps&, const Steps&) = default;
};

// Products with equal keys use the same algorithm. Row-major c = op(a) op(b) is
// column-major c^T = op(b)^T op(a)^T, so that our b is cuBLASLt's first factor.
struct Product {
  bool transpose_first = false;
  bool transpose_second = false;
  bool fast = false;  // Of fp8: partial sums in what the tensor cores have.
  Matrix first;
  Matrix second;
  Matrix result;
  int32_t batch = 1;
  Steps steps = {};

  friend bool operator==(const Product&, const Product&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Product& p) {
    return H::combine(std::move(hash), p.transpose_first, p.transpose_second,
                      p.fast, p.first, p.second, p.result, p.batch,
                      p.steps.first, p.steps.second, p.steps.result);
  }
};

absl::StatusOr<cudaDataType_t> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kF8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return absl::UnimplementedError(absl::StrCat(
          "Gemm on a GPU: a matrix is of ", DTypeName(dtype),
          "; it may be of f64, f32, bf16, f16, fp8_e4m3 or fp8_e5m2"));
  }
}

uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(
      std::min<uintptr_t>(address & (~address + 1), 256));
}

absl::StatusOr<Matrix> MatrixOf(const ConstTensorView& view) {
  Matrix matrix;
  TESSERA_ASSIGN_OR_RETURN(matrix.type, TypeOf(view.dtype()));
  const int64_t rows = view.shape()[0], columns = view.shape()[1];
  matrix.rows = static_cast<uint64_t>(columns);
  matrix.columns = static_cast<uint64_t>(rows);
  // The stride of a single row is arbitrary.
  matrix.stride = rows == 1 ? columns : view.strides()[0];
  matrix.alignment = AlignmentOf(view.data());
  return matrix;
}

std::string_view NameOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_32F:
      return "f32";
    case CUDA_R_64F:
      return "f64";
    case CUDA_R_8F_E4M3:
      return "fp8_e4m3";
    case CUDA_R_8F_E5M2:
      return "fp8_e5m2";
    default:
      return "unknown";
  }
}

bool IsFp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

std::string Describe(const Product& product, double beta) {
  const auto describe = [](const Matrix& m, bool transposed) {
    return absl::StrCat(NameOf(m.type), " [", m.columns, ",", m.rows, "]",
                        transposed ? "^T" : "", " (stride ", m.stride,
                        ", aligned to ", m.alignment, ")");
  };
  return absl::StrCat("Gemm of a ",
                      describe(product.second, product.transpose_second),
                      ", b ", describe(product.first, product.transpose_first),
                      ", c ", describe(product.result, false), ", beta ", beta,
                      ", batch of ", product.batch);
}

struct DestroyLayout {
  void operator()(cublasLtMatrixLayout_t layout) const {
    cublasLtMatrixLayoutDestroy(layout);
  }
};
struct DestroyProduct {
  void operator()(cublasLtMatmulDesc_t product) const {
    cublasLtMatmulDescDestroy(product);
  }
};
struct DestroyPreference {
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
struct DestroyHandle {
  void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>,
                               DestroyLayout>;
using ProductDescriptor =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>,
                    DestroyProduct>;
using Preference =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                    DestroyPreference>;
using Handle =
    std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, DestroyHandle>;

absl::StatusOr<Layout> NewLayout(const Matrix& matrix, int32_t batch,
                                 int64_t step, std::string_view what) {
  cublasLtMatrixLayout_t raw = nullptr;
  TESSERA_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatrixLayoutCreate(&raw, matrix.type, matrix.rows,
                                              matrix.columns, matrix.stride),
                   what));
  Layout layout(raw);
  if (batch == 1) return layout;
  TESSERA_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                       &batch, sizeof(batch)),
      what));
  TESSERA_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatrixLayoutSetAttribute(
                       raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                       sizeof(step)),
                   what));
  return layout;
}

absl::StatusOr<ProductDescriptor> NewProductDescriptor(const Product& product,
                                                       std::string_view what) {
  const bool is_f64 = product.first.type == CUDA_R_64F;
  const cublasComputeType_t compute = is_f64 ? CUBLAS_COMPUTE_64F
                                      : product.first.type == CUDA_R_32F
                                          ? CUBLAS_COMPUTE_32F_PEDANTIC
                                          : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t raw = nullptr;
  TESSERA_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulDescCreate(&raw, compute, is_f64 ? CUDA_R_64F : CUDA_R_32F),
      what));
  ProductDescriptor descriptor(raw);
  const auto set = [&](cublasLtMatmulDescAttributes_t name, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return CublasStatus(cublasLtMatmulDescSetAttribute(raw, name, &operation,
                                                       sizeof(operation)),
                        what);
  };
  TESSERA_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_first));
  TESSERA_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_second));
  if (IsFp8(product.first.type)) {
    const int8_t fast = product.fast ? 1 : 0;
    TESSERA_RETURN_IF_ERROR(CublasStatus(
        cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                       &fast, sizeof(fast)),
        what));
  }
  return descriptor;
}

// The factors by which both operands of fp8 are multiplied, on the device.
absl::Status SetScales(cublasLtMatmulDesc_t product, const void* first,
                       const void* second, std::string_view what) {
  const auto set = [&](cublasLtMatmulDescAttributes_t name,
                       const void* address) {
    return CublasStatus(cublasLtMatmulDescSetAttribute(product, name, &address,
                                                       sizeof(address)),
                        what);
  };
  TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, first));
  return set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, second);
}

// The parameters of a call except for the addresses.
struct Plan {
  ProductDescriptor product;
  Layout first;
  Layout second;
  Layout result;
  cublasLtMatmulAlgo_t algorithm;
};

absl::StatusOr<Preference> NewPreference(const Product& product,
                                         std::string_view what) {
  cublasLtMatmulPreference_t raw = nullptr;
  TESSERA_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulPreferenceCreate(&raw), what));
  Preference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name,
                       const auto& value) {
    return CublasStatus(
        cublasLtMatmulPreferenceSetAttribute(raw, name, &value, sizeof(value)),
        what);
  };
  TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                              uint64_t{kCublasLtWorkspaceBytes}));
  // Partial sums stay in the compute type: results are rounded once.
  TESSERA_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  TESSERA_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.first.alignment));
  TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                              product.second.alignment));
  TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                              product.result.alignment));
  TESSERA_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                              product.result.alignment));
  return preference;
}

absl::StatusOr<Plan> NewPlan(cublasLtHandle_t handle, const Product& product,
                             std::string_view what) {
  Plan plan;
  TESSERA_ASSIGN_OR_RETURN(plan.product, NewProductDescriptor(product, what));
  const int32_t batch = product.batch;
  TESSERA_ASSIGN_OR_RETURN(
      plan.first, NewLayout(product.first, batch, product.steps.first, what));
  TESSERA_ASSIGN_OR_RETURN(plan.second, NewLayout(product.second, batch,
                                                  product.steps.second, what));
  TESSERA_ASSIGN_OR_RETURN(plan.result, NewLayout(product.result, batch,
                                                  product.steps.result, what));
  TESSERA_ASSIGN_OR_RETURN(const Preference preference,
                           NewPreference(product, what));
  std::array<cublasLtMatmulHeuristicResult_t, 8> results;
  int count = 0;
  TESSERA_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulAlgoGetHeuristic(
          handle, plan.product.get(), plan.first.get(), plan.second.get(),
          plan.result.get(), plan.result.get(), preference.get(),
          static_cast<int>(results.size()), results.data(), &count),
      what));
  for (int i = 0; i < count; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    plan.algorithm = results[i].algo;
    return plan;
  }
  return CublasStatus(CUBLAS_STATUS_NOT_SUPPORTED, what);
}

class CublasLtGemm final : public CudaGemm {
 public:
  CublasLtGemm(Handle handle, Buffer workspace)
      : handle_(std::move(handle)), workspace_(std::move(workspace)) {}

  absl::Status Run(KernelStream stream, const GemmOptions& options,
                   const ConstTensorView& a, const ConstTensorView& b,
                   const TensorView& c) override {
    if (c.element_count() == 0) return absl::OkStatus();
    if (a.element_count() == 0 || options.alpha == 0) {
      LaunchScaleMatrix(stream, options.beta, c.dtype(), c.shape()[0],
                        c.shape()[1], c.strides()[0], c.data());
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const Product product,
                             ProductOf(options, a, b, c));
    return RunProduct(stream, options, a, b, c, product);
  }

  absl::Status RunBatch(KernelStream stream,
                        std::span<const op::Gemm> products) override {
    const op::Gemm& p = products.front();
    if (p.options.alpha == 0) return CudaGemm::RunBatch(stream, products);
    TESSERA_ASSIGN_OR_RETURN(Product batch,
                             ProductOf(p.options, p.a, p.b, p.c));
    batch.batch = static_cast<int32_t>(products.size());
    batch.steps = {.first = StepBetween(p.b, products[1].b, batch.first),
                   .second = StepBetween(p.a, products[1].a, batch.second),
                   .result = StepBetween(p.c, products[1].c, batch.result)};
    return RunProduct(stream, p.options, p.a, p.b, p.c, batch);
  }

  // Only the first matrix is transposed: Hopper supports fp8 products in no
  // other form.
  absl::Status RunFp8(KernelStream stream, const Fp8GemmOptions& options,
                      const ConstTensorView& a,
                      const ConstTensorView& a_inverse,
                      const ConstTensorView& b,
                      const ConstTensorView& b_inverse,
                      const TensorView& c) override {
    if (c.element_count() == 0) return absl::OkStatus();
    const float alpha = 1, beta = options.accumulate ? 1 : 0;
    if (a.element_count() == 0) {
      LaunchScaleMatrix(stream, beta, c.dtype(), c.shape()[0], c.shape()[1],
                        c.strides()[0], c.data());
      return absl::OkStatus();
    }
    Product product;
    product.transpose_first = true;
    product.fast = options.fast;
    TESSERA_ASSIGN_OR_RETURN(product.first, MatrixOf(b));
    TESSERA_ASSIGN_OR_RETURN(product.second, MatrixOf(a));
    TESSERA_ASSIGN_OR_RETURN(product.result, MatrixOf(c));
    TESSERA_ASSIGN_OR_RETURN(const Plan* const plan, PlanOf(product, beta));
    TESSERA_RETURN_IF_ERROR(SetScales(plan->product.get(), b_inverse.data(),
                                      a_inverse.data(),
                                      "the scales of a product in fp8"));
    const cublasStatus_t status = cublasLtMatmul(
        handle_.get(), plan->product.get(), &alpha, b.data(), plan->first.get(),
        a.data(), plan->second.get(), &beta, c.data(), plan->result.get(),
        c.data(), plan->result.get(), &plan->algorithm, workspace_.data(),
        workspace_.size(), static_cast<cudaStream_t>(stream));
    return status == CUBLAS_STATUS_SUCCESS
               ? absl::OkStatus()
               : CublasStatus(status, Describe(product, beta));
  }

 private:
  static absl::StatusOr<Product> ProductOf(const GemmOptions& options,
                                           const ConstTensorView& a,
                                           const ConstTensorView& b,
                                           const TensorView& c) {
    Product product;
    product.transpose_first = options.transpose_b;
    product.transpose_second = options.transpose_a;
    TESSERA_ASSIGN_OR_RETURN(product.first, MatrixOf(b));
    TESSERA_ASSIGN_OR_RETURN(product.second, MatrixOf(a));
    TESSERA_ASSIGN_OR_RETURN(product.result, MatrixOf(c));
    return product;
  }

  // The distance in elements; `matrix`, of both, becomes as aligned as both
  // are.
  static int64_t StepBetween(const ConstTensorView& one,
                             const ConstTensorView& next, Matrix& matrix) {
    matrix.alignment = std::min(matrix.alignment, AlignmentOf(next.data()));
    return (next.data() - one.data()) / SizeInBytes(one.dtype());
  }

  absl::Status RunProduct(KernelStream stream, const GemmOptions& options,
                          const ConstTensorView& a, const ConstTensorView& b,
                          const TensorView& c, const Product& product) {
    TESSERA_ASSIGN_OR_RETURN(const Plan* const plan,
                             PlanOf(product, options.beta));
    const float alpha_f32 = static_cast<float>(options.alpha),
                beta_f32 = static_cast<float>(options.beta);
    const bool is_f64 = product.first.type == CUDA_R_64F;
    const void* const alpha =
        is_f64 ? static_cast<const void*>(&options.alpha) : &alpha_f32;
    const void* const beta =
        is_f64 ? static_cast<const void*>(&options.beta) : &beta_f32;
    const cublasStatus_t status = cublasLtMatmul(
        handle_.get(), plan->product.get(), alpha, b.data(), plan->first.get(),
        a.data(), plan->second.get(), beta, c.data(), plan->result.get(),
        c.data(), plan->result.get(), &plan->algorithm, workspace_.data(),
        workspace_.size(), static_cast<cudaStream_t>(stream));
    return status == CUBLAS_STATUS_SUCCESS
               ? absl::OkStatus()
               : CublasStatus(status, Describe(product, options.beta));
  }

  // Asks for heuristics once for each product.
  absl::StatusOr<const Plan*> PlanOf(const Product& product, double beta) {
    const auto found = plans_.find(product);
    if (found != plans_.end()) return found->second.get();
    TESSERA_ASSIGN_OR_RETURN(
        Plan plan, NewPlan(handle_.get(), product, Describe(product, beta)));
    return plans_.emplace(product, std::make_unique<Plan>(std::move(plan)))
        .first->second.get();
  }

  const Handle handle_;
  Buffer workspace_;
  absl::flat_hash_map<Product, std::unique_ptr<Plan>> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaGemm>> CudaGemm::Create(Queue& queue) {
  TESSERA_RETURN_IF_ERROR(LoadCublasLt());
  cublasLtHandle_t raw = nullptr;
  TESSERA_RETURN_IF_ERROR(
      CublasStatus(cublasLtCreate(&raw), "a handle of cuBLASLt"));
  Handle handle(raw);
  auto workspace = Buffer::Allocate(
      queue.device().memory(), kCublasLtWorkspaceBytes, kWorkspaceAlignment);
  if (!workspace.ok()) {
    return absl::Status(
        workspace.status().code(),
        absl::StrCat("cuBLASLt's workspace of ", kCublasLtWorkspaceBytes >> 20,
                     " MiB on ", queue.device().name(), ": ",
                     workspace.status().message()));
  }
  return std::make_unique<CublasLtGemm>(std::move(handle),
                                        *std::move(workspace));
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
