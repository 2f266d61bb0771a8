// The interface that users of Executor implement (Stage), the arguments of its
// passes, and the specs of the tensors between stages (TensorSpec).
#ifndef TESSERA_PIPELINE_EXECUTE_STAGE_H_
#define TESSERA_PIPELINE_EXECUTE_STAGE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor_view.h"

namespace tessera::pipeline {

// The type and shape of a tensor passed between stages.
//
//   const TensorSpec spec{DType::kBF16, {4, 2048, 4096}};
//   spec.ToString();                      // "bf16 [4,2048,4096]"
struct TensorSpec {
  static constexpr size_t kMostDims = 8;

  DType dtype = DType::kF32;
  Dims shape = {};

  // Precondition: the spec is valid.
  int64_t elements() const;
  int64_t bytes() const { return elements() * SizeInBytes(dtype); }

  std::string ToString() const;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// InvalidArgument if the type is invalid, there are more than kMostDims
// dimensions, a size is negative, or the bytes exceed 2^62.
absl::Status CheckSpec(const TensorSpec& spec);

// The wire format of a valid spec: type, number of dimensions, sizes, zeros.
inline constexpr size_t kWireSpecSize = 2 + TensorSpec::kMostDims;
using WireSpec = std::array<int64_t, kWireSpecSize>;
WireSpec ToWire(const TensorSpec& spec);

// InvalidArgument if `wire` does not hold a valid spec.
absl::StatusOr<TensorSpec> FromWire(
    std::span<const int64_t, kWireSpecSize> wire);

// The arguments of Forward. The views are valid during the call; tensors are
// row-major.
struct ForwardPass {
  int32_t microbatch = 0;
  bool training = true;                    // False: no backward follows.
  const ConstTensorView* input = nullptr;  // Null at the first stage.
  const TensorView* output = nullptr;      // Uninitialised; null at the last.
  // At the last stage: receives the micro-batch's loss, one f64 element.
  const TensorView* loss = nullptr;
};

// The arguments of Backward, BackwardInput and BackwardWeight.
struct BackwardPass {
  int32_t microbatch = 0;
  // The input of Forward; null if the stage keeps its own copy (KeepsInput).
  const ConstTensorView* input = nullptr;
  const ConstTensorView* output_gradient = nullptr;  // Null at the last stage.
  // Uninitialised; null at the first stage, and in BackwardWeight.
  const TensorView* input_gradient = nullptr;
  // The last stage multiplies the gradient of its loss by this: 1 / the number
  // of micro-batches, so that the gradients sum to those of the mean loss.
  double loss_scale = 1;
};

// The arguments of LoadInputs.
struct MicroBatchInputs {
  int32_t microbatch = 0;
  double loss_scale = 1;  // As in BackwardPass.
};

// The part of a model that a pipeline rank computes, implemented by the user of
// Executor.
//
//   class Block : public Stage {
//     absl::Status Forward(const ForwardPass& pass) override {
//       // output = f(input); saves what backward needs, by micro-batch
//     }
//     absl::Status BackwardInput(const BackwardPass& pass) override { ... }
//     absl::Status BackwardWeight(const BackwardPass& pass) override { ... }
//   };
//
// Ownership. The Executor owns the tensors between stages: a stage's input is
// valid from its Forward to its Backward or BackwardWeight of the same
// micro-batch (to the end of its Forward if it KeepsInput), the gradient of its
// output from its Backward or BackwardInput to its Backward or BackwardWeight,
// and its outputs only during the call. The stage owns everything else that it
// saves for a micro-batch, until Release.
//
// The first stage has no input: it loads its data by the micro-batch's index.
// The last stage has no output: it computes the loss, from which its backward
// starts.
//
// Devices. Every tensor of a pass is in memory of the device of
// ExecutorOptions::queue. Only work on that queue may access it; a call
// enqueues this work and returns. On an immediate queue the call may also do
// the work directly.
//
// Calls are made one at a time, from the thread that calls Executor::Run. An
// error ends the step on every rank, with the stage's message.
class Stage {
 public:
  virtual ~Stage() = default;

  // The spec of Forward's output for an input with this spec (null at the first
  // stage), the same for every micro-batch. Called for all stages except the
  // last, if ExecutorOptions::boundaries does not give it.
  virtual absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec* input);

  // Called with ExecutorOptions::captures, before all passes of a training
  // step. Enqueues copies of everything that changes between steps (data,
  // scales) into memory that belongs to the micro-batch in every step, and
  // waits for work of other queues that the passes need. The passes read this
  // memory and enqueue the same work in every step. The default does nothing.
  virtual absl::Status LoadInputs(const MicroBatchInputs& inputs);

  virtual absl::Status Forward(const ForwardPass& pass) = 0;

  // Called after Forward: returns true if the stage saved everything that its
  // backward needs from the input, so that the Executor can free the input.
  virtual bool KeepsInput(int32_t microbatch) const;

  // Computes the gradient of the input. Called once per micro-batch.
  virtual absl::Status BackwardInput(const BackwardPass& pass) = 0;
  // Adds to the gradients of the weights. Called at any time after
  // BackwardInput.
  virtual absl::Status BackwardWeight(const BackwardPass& pass) = 0;
  // Both in one call. The default calls one after the other.
  virtual absl::Status Backward(const BackwardPass& pass);

  // Frees everything saved for the micro-batch. Called after Backward or
  // BackwardWeight, or after Forward if there is no backward.
  virtual void Release(int32_t microbatch);

  // The gradients of all weights, contiguous, in the same order on both copies
  // of the stage. Called only for two-way maps, which sum the copies. The
  // default returns Unimplemented.
  virtual absl::StatusOr<std::vector<TensorView>> Gradients();

  // The gradient of the weights shared with other stages under this name in
  // ExecutorOptions::tied. Contiguous. The default returns Unimplemented.
  virtual absl::StatusOr<TensorView> TiedGradient(std::string_view name);

  // sum += gradient, and copy = gradient, for tied weights whose stages are on
  // one rank. The tensors are contiguous and have the same type and size. The
  // defaults require host memory; stages on a device override both with work on
  // its queue.
  virtual absl::Status AddGradient(ConstTensorView gradient, TensorView sum);
  virtual absl::Status CopyGradient(ConstTensorView gradient, TensorView copy);

  // Execute UNSHARD, RESHARD and REDUCE_GRAD of a schedule with sharded
  // parameters: Unshard starts to gather the parameters, Reshard releases them,
  // ReduceGradient starts to reduce the accumulated gradients over the
  // replicas. Each may return before it is done: the stage's next computation
  // waits for the parameters, and the consumer of the reduced gradients waits
  // for the reduction. Called in the same order on all replicas. The defaults
  // do nothing.
  virtual absl::Status Unshard();
  virtual absl::Status Reshard();
  virtual absl::Status ReduceGradient();
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_STAGE_H_
