// CountingOps: operations that compute nothing and touch no tensor. In a dry
// run, layers on them allocate and communicate as in a real run.
//
//   CountingDevice device(memory, staging);
//   TESSERA_ASSIGN_OR_RETURN(auto queue, device.CreateQueue("compute"));
//   CountingOps ops(*queue);
//   TensorGroup group(ops, world);
//   ... layers on `group` ...
//   ops.calls();
//
// Arguments are not checked. One thread at a time.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_COUNTING_OPS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_COUNTING_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class CountingOps final : public Ops {
 public:
  // `queue` outlives it; mostly that of a CountingDevice.
  explicit CountingOps(Queue& queue) : queue_(queue) {}

  Queue& queue() const override { return queue_; }
  bool computes() const override { return false; }
  int64_t calls() const { return calls_; }

  absl::Status Gemm(const GemmOptions&, ConstTensorView, ConstTensorView,
                    TensorView) override {
    return Count();
  }
  absl::Status CastTranspose(ConstTensorView, ConstTensorView, TensorView,
                             TensorView, TensorView) override {
    return Count();
  }
  absl::Status GemmFp8(const Fp8GemmOptions&, ConstTensorView, ConstTensorView,
                       ConstTensorView, ConstTensorView, TensorView) override {
    return Count();
  }
  absl::Status UpdateScales(int, ConstTensorView, TensorView, TensorView,
                            TensorView, TensorView) override {
    return Count();
  }
  absl::Status AddBias(ConstTensorView, TensorView) override { return Count(); }
  absl::Status SumRows(ConstTensorView, TensorView) override { return Count(); }
  absl::Status Copy(ConstTensorView, TensorView) override { return Count(); }
  absl::Status Add(ConstTensorView, TensorView) override { return Count(); }
  absl::Status Scale(double, TensorView) override { return Count(); }
  absl::Status Fill(double, TensorView) override { return Count(); }
  absl::Status Cast(ConstTensorView, TensorView) override { return Count(); }
  absl::Status Dropout(const DropoutMask&, TensorView) override {
    return Count();
  }
  absl::Status RmsNorm(double, ConstTensorView, ConstTensorView, TensorView,
                       TensorView) override {
    return Count();
  }
  absl::Status RmsNormInputGradient(ConstTensorView, ConstTensorView,
                                    ConstTensorView, ConstTensorView,
                                    TensorView) override {
    return Count();
  }
  absl::Status AddRmsNorm(double, ConstTensorView, ConstTensorView, TensorView,
                          TensorView, TensorView) override {
    return Count();
  }
  absl::Status AddRmsNormInputGradient(ConstTensorView, ConstTensorView,
                                       ConstTensorView, ConstTensorView,
                                       ConstTensorView, TensorView) override {
    return Count();
  }
  absl::Status RmsNormWeightGradient(ConstTensorView, ConstTensorView,
                                     ConstTensorView, TensorView) override {
    return Count();
  }
  absl::Status Glu(GluKind, ConstTensorView, ConstTensorView,
                   TensorView) override {
    return Count();
  }
  absl::Status GluGradient(GluKind, ConstTensorView, ConstTensorView,
                           ConstTensorView, TensorView, TensorView) override {
    return Count();
  }
  absl::Status Rotate(const RotaryFrequencies&, bool, ConstTensorView,
                      TensorView) override {
    return Count();
  }
  absl::Status GatherRows(ConstTensorView, IndexRange, ConstTensorView,
                          TensorView) override {
    return Count();
  }
  absl::Status AddRows(ConstTensorView, IndexRange, ConstTensorView,
                       TensorView) override {
    return Count();
  }
  absl::Status RowMax(ConstTensorView, TensorView) override { return Count(); }
  absl::Status SumExp(ConstTensorView, ConstTensorView, TensorView) override {
    return Count();
  }
  absl::Status Pick(ConstTensorView, IndexRange, ConstTensorView,
                    TensorView) override {
    return Count();
  }
  absl::Status CrossEntropyLosses(ConstTensorView, ConstTensorView,
                                  ConstTensorView, ConstTensorView,
                                  TensorView) override {
    return Count();
  }
  absl::Status CrossEntropyGradient(ConstTensorView, ConstTensorView,
                                    IndexRange, ConstTensorView,
                                    ConstTensorView, const LossTerms&,
                                    TensorView) override {
    return Count();
  }
  absl::Status Route(const RouterOptions&, ConstTensorView, ConstTensorView,
                     TensorView, TensorView) override {
    return Count();
  }
  absl::Status RouteGradient(const RouterOptions&, ConstTensorView,
                             ConstTensorView, ConstTensorView, ConstTensorView,
                             double, TensorView) override {
    return Count();
  }
  absl::Status ScaleRows(ConstTensorView, ConstTensorView,
                         TensorView) override {
    return Count();
  }
  absl::Status ScaleRowsGradient(ConstTensorView, ConstTensorView,
                                 ConstTensorView, TensorView,
                                 TensorView) override {
    return Count();
  }
  absl::Status Sum(double, ConstTensorView, TensorView) override {
    return Count();
  }
  absl::Status Attend(const AttentionBlock&, const AttentionState&) override {
    return Count();
  }
  absl::Status AttendGradient(const AttentionBlock&,
                              const AttentionGradients&) override {
    return Count();
  }
  absl::Status RowDots(ConstTensorView, ConstTensorView, TensorView) override {
    return Count();
  }

 private:
  absl::Status Count() {
    ++calls_;
    return absl::OkStatus();
  }

  Queue& queue_;
  int64_t calls_ = 0;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_COUNTING_OPS_H_
