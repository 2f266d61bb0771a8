#include "tensor_parallel/ops_cuda/cudnn_attention.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops_cuda/cudnn_attention_kernels.h"
#include "tensor_parallel/ops_cuda/cudnn_graph.h"
#include "tensor_parallel/ops_cuda/cudnn_plans.h"
#include "tensor_parallel/ops_cuda/library_workspace.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

struct PlanKey {
  bool is_gradient = false;
  CudnnAttentionShape shape;
  CudnnAttentionStrides strides;

  friend bool operator==(const PlanKey&, const PlanKey&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const PlanKey& k) {
    return H::combine(std::move(hash), k.is_gradient, k.shape, k.strides);
  }
};

using Arguments = absl::InlinedVector<CudnnArgument, 16>;

CudnnAttentionShape ShapeOf(const AttentionBlock& block) {
  return {.sequences = block.query.shape()[0],
          .queries = block.query.shape()[1],
          .keys = block.key.shape()[1],
          .heads = block.query.shape()[2],
          .kv_heads = block.key.shape()[2],
          .head_size = block.query.shape()[3],
          .causal = block.kind == BlockKind::kCausal};
}

template <typename View>
CudnnStrides StridesOf(const View& view) {
  return {.sequence = view.strides()[0],
          .position = view.strides()[1],
          .head = view.strides()[2]};
}

// The inputs as they are; results, and the output in the backward, packed.
PlanKey KeyOf(const AttentionBlock& block) {
  PlanKey key;
  key.shape = ShapeOf(block);
  key.strides = CudnnAttentionStrides::Packed(key.shape);
  key.strides.query = StridesOf(block.query);
  key.strides.key = StridesOf(block.key);
  key.strides.value = StridesOf(block.value);
  return key;
}

// cuDNN's kernels access 16 bytes at a time.
template <typename View>
absl::Status CheckOperand(std::string_view name, const View& view) {
  constexpr int64_t kElements = 8;
  if (view.dtype() != DType::kBF16) {
    return absl::UnimplementedError(
        absl::StrCat("cuDNN attention: \"", name, "\" is of ",
                     DTypeName(view.dtype()), "; it should be of bf16"));
  }
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(view.data()) % (kElements * 2) == 0 &&
      view.strides()[0] % kElements == 0 &&
      view.strides()[1] % kElements == 0 && view.strides()[2] % kElements == 0;
  if (!is_aligned) {
    return absl::UnimplementedError(absl::StrCat(
        "cuDNN attention: rows of \"", name, "\" are ", view.strides()[0], ", ",
        view.strides()[1], " and ", view.strides()[2],
        " elements apart; they should be aligned to 16 bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckBlock(const AttentionBlock& block) {
  if (block.first_keys.has_value()) {
    return absl::UnimplementedError(
        "cuDNN attention: \"first_keys\" are given; it should have none");
  }
  if (block.cap != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "cuDNN attention: scores are capped at ", block.cap, "; give no cap"));
  }
  TESSERA_RETURN_IF_ERROR(CheckOperand("query", block.query));
  TESSERA_RETURN_IF_ERROR(CheckOperand("key", block.key));
  return CheckOperand("value", block.value);
}

template <typename T, typename View>
HeadRows<T> RowsOf(const View& view) {
  return {.data = reinterpret_cast<T*>(view.data()),
          .sequence_stride = view.strides()[0],
          .position_stride = view.strides()[1],
          .head_stride = view.strides()[2]};
}

HeadRowSizes SizesOf(const ConstTensorView& view) {
  return {.sequences = view.shape()[0],
          .positions = view.shape()[1],
          .heads = view.shape()[2],
          .size = view.rank() == 4 ? view.shape()[3] : 1};
}

// The values that plans read from the host while they are enqueued.
struct HostValues {
  HostValues(const CudnnAttentionShape& shape, double factor)
      : scale(static_cast<float>(factor)),
        queries(static_cast<int32_t>(shape.queries)),
        keys(static_cast<int32_t>(shape.keys)) {}

  float scale;
  // Kernels before 9.10 compute NaNs if all scores of a tile are infinite.
  float masked = cudnnGetVersion() < 91000
                     ? std::numeric_limits<float>::lowest()
                     : -std::numeric_limits<float>::infinity();
  float one = 1;
  int32_t queries;
  int32_t keys;
};

// The arguments that both directions have in common.
Arguments BlockArguments(const AttentionBlock& block,
                         const CudnnAttentionShape& shape,
                         const HostValues& values) {
  Arguments arguments = {{kCudnnQuery, block.query.data()},
                         {kCudnnKey, block.key.data()},
                         {kCudnnValue, block.value.data()},
                         {kCudnnScale, &values.scale}};
  if (shape.causal) arguments.push_back({kCudnnMasked, &values.masked});
  if (shape.causal && shape.queries != shape.keys) {
    arguments.push_back({kCudnnQueries, &values.queries});
    arguments.push_back({kCudnnKeys, &values.keys});
  }
  return arguments;
}

struct DestroyHandle {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<cudnnContext, DestroyHandle>;

class CudnnAttentionImpl final : public CudnnAttention {
 public:
  CudnnAttentionImpl(const CudnnAttentionOptions& options, Handle handle,
                     CudnnDescriptor properties, Scratch& scratch)
      : options_(options),
        handle_(std::move(handle)),
        properties_(std::move(properties)),
        scratch_(scratch) {}

  bool Supports(const AttentionBlock& block,
                const AttentionState& state) override {
    return ForwardPlan(block, state).ok();
  }
  bool SupportsGradient(const AttentionBlock& block,
                        const AttentionGradients& gradients) override {
    return BackwardPlan(block, gradients).ok();
  }

  absl::Status Attend(KernelStream stream, const AttentionBlock& block,
                      const AttentionState& state) override;
  absl::Status AttendGradient(KernelStream stream, const AttentionBlock& block,
                              const AttentionGradients& gradients) override;

 private:
  absl::StatusOr<const CudnnPlan*> ForwardPlan(const AttentionBlock& block,
                                               const AttentionState& state);
  absl::StatusOr<const CudnnPlan*> BackwardPlan(
      const AttentionBlock& block, const AttentionGradients& gradients);
  // The plan of `key`, compiled on its first use; failures are cached too.
  absl::StatusOr<const CudnnPlan*> PlanOf(const PlanKey& key);
  // Scratch memory of at least `bytes` bytes.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes);
  absl::Status Run(KernelStream stream, const CudnnPlan& plan,
                   const Arguments& arguments, std::byte* workspace);

  const CudnnAttentionOptions options_;
  const Handle handle_;
  const CudnnDescriptor properties_;
  Scratch& scratch_;
  absl::flat_hash_map<PlanKey, std::unique_ptr<absl::StatusOr<CudnnPlan>>>
      plans_;
};

absl::StatusOr<const CudnnPlan*> CudnnAttentionImpl::PlanOf(
    const PlanKey& key) {
  std::unique_ptr<absl::StatusOr<CudnnPlan>>& plan = plans_[key];
  if (plan == nullptr) {
    plan = std::make_unique<absl::StatusOr<CudnnPlan>>(
        key.is_gradient
            ? BuildBackwardPlan(key.shape, key.strides, options_.deterministic,
                                properties_)
            : BuildForwardPlan(key.shape, key.strides, properties_));
  }
  TESSERA_RETURN_IF_ERROR(plan->status());
  return &**plan;
}

absl::StatusOr<const CudnnPlan*> CudnnAttentionImpl::ForwardPlan(
    const AttentionBlock& block, const AttentionState& state) {
  TESSERA_RETURN_IF_ERROR(CheckBlock(block));
  PlanKey key = KeyOf(block);
  if (block.is_whole) {
    TESSERA_RETURN_IF_ERROR(CheckOperand("output", state.output));
    key.strides.output = StridesOf(state.output);
  }
  key.strides.output_gradient = {};
  key.strides.query_gradient = {};
  key.strides.key_gradient = key.strides.value_gradient = {};
  return PlanOf(key);
}

absl::StatusOr<const CudnnPlan*> CudnnAttentionImpl::BackwardPlan(
    const AttentionBlock& block, const AttentionGradients& gradients) {
  TESSERA_RETURN_IF_ERROR(CheckBlock(block));
  TESSERA_RETURN_IF_ERROR(
      CheckOperand("output_gradient", gradients.output_gradient));
  PlanKey key = KeyOf(block);
  key.is_gradient = true;
  key.strides.output_gradient = StridesOf(gradients.output_gradient);
  if (block.is_whole) {
    TESSERA_RETURN_IF_ERROR(CheckOperand("output", gradients.output));
    TESSERA_RETURN_IF_ERROR(
        CheckOperand("query_gradient", gradients.query_gradient));
    TESSERA_RETURN_IF_ERROR(
        CheckOperand("key_gradient", gradients.key_gradient));
    TESSERA_RETURN_IF_ERROR(
        CheckOperand("value_gradient", gradients.value_gradient));
    key.strides.output = StridesOf(gradients.output);
    key.strides.query_gradient = StridesOf(gradients.query_gradient);
    key.strides.key_gradient = StridesOf(gradients.key_gradient);
    key.strides.value_gradient = StridesOf(gradients.value_gradient);
  }
  return PlanOf(key);
}

absl::StatusOr<std::byte*> CudnnAttentionImpl::Reserve(int64_t bytes) {
  absl::StatusOr<std::byte*> memory = scratch_.Reserve(bytes);
  if (memory.ok()) return memory;
  return absl::Status(
      memory.status().code(),
      absl::StrCat("cuDNN attention needs ", bytes, " bytes of scratch memory",
                   options_.deterministic ? " (less without determinism)" : "",
                   ": ", memory.status().message()));
}

absl::Status CudnnAttentionImpl::Run(KernelStream stream, const CudnnPlan& plan,
                                     const Arguments& arguments,
                                     std::byte* workspace) {
  TESSERA_RETURN_IF_ERROR(CudnnStatus(
      cudnnSetStream(handle_.get(), static_cast<cudaStream_t>(stream)),
      "the stream of cuDNN's attention"));
  return plan.Run(handle_.get(), arguments, workspace);
}

absl::Status CudnnAttentionImpl::Attend(KernelStream stream,
                                        const AttentionBlock& block,
                                        const AttentionState& state) {
  TESSERA_ASSIGN_OR_RETURN(const CudnnPlan* const plan,
                           ForwardPlan(block, state));
  const CudnnAttentionShape shape = ShapeOf(block);
  const CudnnForwardScratch parts(shape, plan->workspace_bytes());
  TESSERA_ASSIGN_OR_RETURN(std::byte* const scratch, Reserve(parts.bytes));
  auto* const output = reinterpret_cast<BF16*>(scratch + parts.output);
  auto* const log = reinterpret_cast<float*>(scratch + parts.log_sum_exp);

  const HostValues values(shape, block.scale);
  Arguments arguments = BlockArguments(block, shape, values);
  arguments.push_back(
      {kCudnnOutput,
       block.is_whole ? static_cast<void*>(state.output.data()) : output});
  arguments.push_back({kCudnnLogSumExp, log});
  TESSERA_RETURN_IF_ERROR(
      Run(stream, *plan, arguments, scratch + parts.workspace));
  const auto state_log = RowsOf<float>(state.log_sum_exp);
  if (block.is_whole) {
    LaunchUnpackLogSumExp(stream, SizesOf(block.query), log, state_log);
  } else {
    LaunchMergeAttention(stream, SizesOf(block.query), output, log,
                         RowsOf<float>(state.output), state_log);
  }
  return absl::OkStatus();
}

absl::Status CudnnAttentionImpl::AttendGradient(
    KernelStream stream, const AttentionBlock& block,
    const AttentionGradients& gradients) {
  TESSERA_ASSIGN_OR_RETURN(const CudnnPlan* const plan,
                           BackwardPlan(block, gradients));
  const HeadRowSizes query_sizes = SizesOf(block.query);
  const HeadRowSizes key_sizes = SizesOf(block.key);
  const CudnnAttentionShape shape = ShapeOf(block);
  const CudnnBackwardScratch parts(shape, options_.deterministic,
                                   plan->workspace_bytes());
  TESSERA_ASSIGN_OR_RETURN(std::byte* const scratch, Reserve(parts.bytes));
  const auto bf16_at = [&](int64_t offset) {
    return reinterpret_cast<BF16*>(scratch + offset);
  };
  auto* const log = reinterpret_cast<float*>(scratch + parts.log_sum_exp);

  // The operands of a whole block are used where they are.
  const auto place = [&](const std::byte* data, int64_t offset) -> const void* {
    return block.is_whole ? data : scratch + offset;
  };
  if (!block.is_whole) {
    LaunchPackRows(stream, query_sizes, RowsOf<const float>(gradients.output),
                   bf16_at(parts.output));
  }
  LaunchPackLogSumExp(stream, query_sizes,
                      RowsOf<const float>(gradients.log_sum_exp), log);

  const HostValues values(shape, block.scale);
  Arguments arguments = BlockArguments(block, shape, values);
  arguments.push_back(
      {kCudnnOutput, place(gradients.output.data(), parts.output)});
  arguments.push_back({kCudnnLogSumExp, log});
  arguments.push_back({kCudnnOne, &values.one});
  arguments.push_back({kCudnnOutputGradient, gradients.output_gradient.data()});
  arguments.push_back(
      {kCudnnQueryGradient,
       place(gradients.query_gradient.data(), parts.query_gradient)});
  arguments.push_back({kCudnnKeyGradient, place(gradients.key_gradient.data(),
                                                parts.key_gradient)});
  arguments.push_back(
      {kCudnnValueGradient,
       place(gradients.value_gradient.data(), parts.value_gradient)});
  arguments.push_back({kCudnnDots, scratch + parts.dots});
  if (!options_.deterministic) {
    arguments.push_back({kCudnnQueryF32, scratch + parts.query_sum});
  }
  TESSERA_RETURN_IF_ERROR(
      Run(stream, *plan, arguments, scratch + parts.workspace));
  if (block.is_whole) return absl::OkStatus();

  LaunchAddPackedRows(stream, query_sizes, bf16_at(parts.query_gradient),
                      RowsOf<float>(gradients.query_gradient));
  LaunchAddPackedRows(stream, key_sizes, bf16_at(parts.key_gradient),
                      RowsOf<float>(gradients.key_gradient));
  LaunchAddPackedRows(stream, key_sizes, bf16_at(parts.value_gradient),
                      RowsOf<float>(gradients.value_gradient));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCudnn() { return LoadCudnn(); }

absl::StatusOr<std::unique_ptr<CudnnAttention>> CreateCudnnAttention(
    Queue& queue, const CudnnAttentionOptions& options, Scratch& scratch) {
  if (!CheckCudnn().ok()) return nullptr;
  cudnnHandle_t raw = nullptr;
  TESSERA_RETURN_IF_ERROR(CudnnStatus(cudnnCreate(&raw), "a handle of cuDNN"));
  Handle handle(raw);
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor properties,
      CudnnPropertiesOfDevice(queue.device().memory()->device_ordinal()));
  return std::make_unique<CudnnAttentionImpl>(options, std::move(handle),
                                              std::move(properties), scratch);
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
