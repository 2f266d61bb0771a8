// Ops: the arithmetic of layers on one device.
//
//   CpuOps ops;                                   // ops_cpu/cpu_ops.h
//   // y = x w^T: x is [tokens, in], w [out, in], y [tokens, out]
//   TESSERA_RETURN_IF_ERROR(ops.Run(op::Gemm{{.transpose_b = true}, x, w, y}));
//
//   Ops dry(queue);  // Computes nothing and touches no tensor.
//
// Operations are values (base/device/operation_queue.h), grouped by subject:
//
//   products.h       Gemm, GroupedGemm, CastTranspose, GemmFp8, UpdateScales
//   elementwise.h    Copy, Add, Scale, SoftCap, Fill, Cast, Sum, AddBias,
//                    SumRows, Dropout, ScaleRows, ScaleRowsGradient
//   norms.h          RmsNorm, AddRmsNorm, their gradients, and RmsNorm in parts
//   glu.h            Glu, GluGradient
//   rotary.h         Rotate
//   row_tables.h     GatherRows, AddRows
//   cross_entropy.h  RowMax, SumExp, MaxAndSumExp, Pick, CrossEntropyLosses,
//                    CrossEntropyGradient
//   router.h         Route, RouteGradient
//   attention.h      Attend, AttendGradient, RowDots, AddSinks, SinkGradients,
//                    MaxScores
#ifndef TESSERA_TENSOR_PARALLEL_OPS_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_OPS_H_

#include <string_view>

#include "base/device/device.h"
#include "base/device/operation_queue.h"
#include "tensor_parallel/ops/attention.h"
#include "tensor_parallel/ops/cross_entropy.h"
#include "tensor_parallel/ops/elementwise.h"
#include "tensor_parallel/ops/glu.h"
#include "tensor_parallel/ops/norms.h"
#include "tensor_parallel/ops/products.h"
#include "tensor_parallel/ops/rotary.h"
#include "tensor_parallel/ops/router.h"
#include "tensor_parallel/ops/row_tables.h"

namespace tessera::tensor_parallel {

using LayerOperations = Joined<op::Products, op::Elementwise, op::Norms,
                               op::Activations, op::Rotary, op::RowTables,
                               op::CrossEntropy, op::Router, op::Attention>;

// Layers compute by this class alone. Operations take effect in the order of
// the calls: results are there for later work on the queue, not for the host
// (base/device/device.h).
//
// Tensors are views in the device's memory, of one dtype among f64, f32, bf16
// and f16 unless said otherwise. Elements of a row (the last dimension) are
// adjacent; rows may be apart. "Statistics" are f64 for f64 and f32 for f32,
// bf16 and f16, contiguous: sums are computed in these, and bf16 results are
// rounded once. Where an operation adds to a tensor, its contents count. Ids,
// targets and positions are contiguous i64.
//
// The same device gives the same bits for the same shapes; devices differ by
// the order of their sums. On the CPU results depend neither on the number of
// threads nor on how rows are divided among calls: a row alone gives the bits
// that it gives in a batch, and sums over rows continue from the contents of
// the target. Exceptions to the latter: Gemm, GroupedGemm, Attend and
// AttendGradient, and sums into bf16 targets, which are rounded at the end of
// each call. Shapes may have zeros.
//
// Tensors of one operation do not overlap, except that the output of an
// elementwise operation or a norm may be the view of an input.
//
// Errors: InvalidArgument that names the operation, the tensor, its shape or
// type and what it should be; nothing is enqueued then. Invalid values (an id
// outside the vocabulary) are found when the work runs, and the queue returns
// the error. Calls of one object are made by one thread at a time.
class Ops : public OperationQueue<LayerOperations> {
 public:
  using OperationQueue::OperationQueue;
};

// Groups of operations whose times are reported separately.
enum class OperationKind {
  kProduct,    // Gemm, GroupedGemm, GemmFp8.
  kAttention,  // Attend, AttendGradient.
  kOther,
};

// The kind of the operation with this name.
inline OperationKind KindOf(std::string_view name) {
  if (name == op::Gemm::kName || name == op::GroupedGemm::kName ||
      name == op::GemmFp8::kName) {
    return OperationKind::kProduct;
  }
  return name == op::Attend::kName || name == op::AttendGradient::kName ||
                 name == op::MaxScores::kName
             ? OperationKind::kAttention
             : OperationKind::kOther;
}

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_OPS_H_
