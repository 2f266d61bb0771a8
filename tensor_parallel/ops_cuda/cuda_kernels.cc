// The operations of layers on a GPU, and the same kernels emulated on the CPU.
//
// cuBLASLt computes products (gemm.h). cuDNN computes attention in bf16 if it
// has a plan for the block (cudnn_attention.h); otherwise our own kernels do
// (attention.h). All other kernels are in the .cu files of this package.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/attention.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tensor_parallel/ops_cuda/cudnn_attention.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

struct CudaLibraries {
  std::unique_ptr<CudaGemm> gemm;
  std::unique_ptr<CudnnAttention> cudnn;  // Null where there is none.
};

namespace {

absl::Status Run(CudaBackend& cuda, const op::Gemm& call) {
  return cuda.libraries->gemm->Run(cuda.stream, call.options, call.a, call.b,
                                   call.c);
}

absl::Status Run(CudaBackend& cuda, const op::GroupedGemm& call) {
  const std::vector<op::Gemm> products = call.Products();
  const bool is_batch =
      products.size() > 1 && products.size() == call.rows.size() &&
      std::ranges::count(call.rows, call.rows[0]) == std::ssize(call.rows);
  if (is_batch && products[0].a.element_count() > 0) {
    return cuda.libraries->gemm->RunBatch(cuda.stream, products);
  }
  for (const op::Gemm& product : products) {
    TESSERA_RETURN_IF_ERROR(Run(cuda, product));
  }
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::GemmFp8& call) {
  return cuda.libraries->gemm->RunFp8(cuda.stream, call.options, call.a,
                                      call.a_inverse, call.b, call.b_inverse,
                                      call.c);
}

bool IsEmpty(const AttentionBlock& block) {
  return block.query.element_count() == 0 || block.key.element_count() == 0;
}

absl::Status Run(CudaBackend& cuda, const op::Attend& call) {
  CudnnAttention* const cudnn = cuda.libraries->cudnn.get();
  if (cudnn != nullptr && !IsEmpty(call.block) &&
      cudnn->Supports(call.block, call.state)) {
    return cudnn->Attend(cuda.stream, call.block, call.state);
  }
  return Attend(cuda.stream, call.block, call.state);
}

// AttentionGradients::delta, in scratch memory.
absl::StatusOr<ConstTensorView> DeltaOf(CudaBackend& cuda,
                                        const AttentionGradients& gradients) {
  const ConstTensorView& of = gradients.output;
  const std::array<int64_t, 3> shape = {of.shape()[0], of.shape()[1],
                                        of.shape()[2]};
  const DType dtype = StatisticsOf(of.dtype());
  const int64_t bytes = shape[0] * shape[1] * shape[2] * SizeInBytes(dtype);
  TESSERA_ASSIGN_OR_RETURN(std::byte* const memory,
                           cuda.scratch.Reserve(bytes));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView delta,
      TensorView::Create({memory, static_cast<size_t>(bytes)}, dtype, shape));
  TESSERA_RETURN_IF_ERROR(
      SetRowDots(cuda, {of, gradients.output_gradient, delta}));
  return ConstTensorView(delta);
}

absl::Status Run(CudaBackend& cuda, const op::AttendGradient& call) {
  CudnnAttention* const cudnn = cuda.libraries->cudnn.get();
  if (cudnn != nullptr && !IsEmpty(call.block) &&
      cudnn->SupportsGradient(call.block, call.gradients)) {
    return cudnn->AttendGradient(cuda.stream, call.block, call.gradients);
  }
  AttentionGradients gradients = call.gradients;
  if (call.block.is_whole) {
    TESSERA_ASSIGN_OR_RETURN(gradients.delta, DeltaOf(cuda, gradients));
  }
  return AttendGradient(cuda.stream, call.block, gradients);
}

absl::Status Run(CudaBackend& cuda, const op::MaxScores& call) {
  return RaiseMaxScores(cuda.stream, call.block, call.max_scores);
}

void CheckRows(const ConstTensorView& a, const ConstTensorView& b,
               const ConstTensorView& c, OperandChecker& check) {
  check.HasSeparateRows("a", a, INT32_MAX)
      .HasSeparateRows("b", b, INT32_MAX)
      .HasSeparateRows("c", c, INT32_MAX);
}

// The tensor cores require fp8 in units of 16 bytes (cuBLAS, "Using FP8 data
// types"). The emulation checks it too, so that tests find operands that a GPU
// would reject.
void CheckFp8Units(const op::GemmFp8& call, OperandChecker& check) {
  constexpr int64_t kUnit = 16;
  const auto require = [&](const char* name, const ConstTensorView& view) {
    const bool is_whole =
        view.shape()[0] % kUnit == 0 && view.shape()[1] % kUnit == 0;
    check.Requires(
        is_whole && RowsAreAligned(view),
        absl::StrCat("\"", name, "\" has shape ", DimsToString(view.shape()),
                     " and strides ", DimsToString(view.strides()),
                     "; products in fp8 on a GPU require sizes that are "
                     "multiples of ",
                     kUnit,
                     ", and rows that begin at multiples of 16 bytes: choose "
                     "such sizes, or multiply in bf16."));
  };
  require("a", call.a);
  require("b", call.b);
  require("c", call.c);
}

CudaKernelTable MakeKernels() {
  CudaKernelTable table;
  table.Add<op::Gemm, op::GroupedGemm, op::GemmFp8, op::Attend,
            op::AttendGradient, op::MaxScores>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
  AddCrossEntropyKernels(table);
  AddElementwiseKernels(table);
  AddFp8Kernels(table);
  AddRouterKernels(table);
  AddRowSumKernels(table);
  AddRowTableKernels(table);
  table.AddCheck<op::Gemm, op::GroupedGemm>(
      [](const CudaBackend&, const auto& call, OperandChecker& check) {
        CheckRows(call.a, call.b, call.c, check);
      });
  table.AddCheck<op::GemmFp8>(
      [](const CudaBackend&, const op::GemmFp8& call, OperandChecker& check) {
        CheckRows(call.a, call.b, call.c, check);
        CheckFp8Units(call, check);
      });
  return table;
}

absl::Status CheckQueue(const Queue& queue) {
  using ::tessera::TESSERA_KERNELS::kIsEmulated;
  if (kIsEmulated == (queue.native_handle() == nullptr)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "CreateCudaOps: the queue is of device ", queue.device().name(),
      kIsEmulated ? ", whose streams run no emulated kernels: use "
                    "native::CreateCudaOps"
                  : ", which has no CUDA stream: create the queue with a "
                    "CudaDevice, or use CpuOps"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(
    Queue& queue, const CudaOpsOptions& options) {
  static const CudaKernelTable kernels = MakeKernels();
  TESSERA_RETURN_IF_ERROR(CheckQueue(queue));
  Scratch scratch = ::tessera::TESSERA_KERNELS::kIsEmulated
                        ? Scratch(HostMemory())
                        : Scratch(queue.device().memory(),
                                  [&queue] { return queue.Synchronize(); });
  const auto backend = std::make_shared<CudaBackend>(
      CudaBackend{queue, queue.native_handle(), std::move(scratch),
                  std::make_shared<CudaLibraries>()});
  CudaLibraries& libraries = *backend->libraries;
  TESSERA_ASSIGN_OR_RETURN(libraries.gemm, CudaGemm::Create(queue));
  TESSERA_ASSIGN_OR_RETURN(
      libraries.cudnn,
      CreateCudnnAttention(queue, {.deterministic = options.deterministic},
                           backend->scratch));
  return std::make_unique<Ops>(queue, kernels, backend, /*enqueues=*/true);
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
