#include "tensor_parallel/ops/ops_conformance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {
namespace {

// Copies of the operands of one operation in other memory. Operands that
// overlap do so there, too.
class Copies {
 public:
  explicit Copies(std::shared_ptr<MemoryResource> memory)
      : memory_(std::move(memory)) {}

  void Add(const ConstTensorView& view) {
    const MemoryAccess access = ReadsFrom(view);
    if (access.size > 0) ranges_.push_back({access.data, access.size, {}});
  }

  // After the last Add. Copies have the alignment of their originals.
  absl::Status Allocate() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (Range& range : ranges_) {
      if (!merged.empty() && range.begin < merged.back().end()) {
        const std::byte* const end = std::max(range.end(), merged.back().end());
        merged.back().size = static_cast<size_t>(end - merged.back().begin);
      } else {
        merged.push_back(std::move(range));
      }
    }
    ranges_ = std::move(merged);
    for (Range& range : ranges_) {
      TESSERA_ASSIGN_OR_RETURN(
          range.copy,
          Buffer::Allocate(memory_, range.size + kDefaultAlignment));
    }
    return absl::OkStatus();
  }

  // Calls f(original, copy) for each range.
  template <typename Function>
  absl::Status ForEach(const Function& f) {
    for (Range& range : ranges_) {
      TESSERA_RETURN_IF_ERROR(
          f(std::span(const_cast<std::byte*>(range.begin), range.size),
            std::span(range.at(range.begin), range.size)));
    }
    return absl::OkStatus();
  }

  template <typename Byte>
  BasicTensorView<Byte> Of(const BasicTensorView<Byte>& view) {
    for (Range& range : ranges_) {
      if (view.element_count() > 0 && view.data() >= range.begin &&
          view.data() < range.end()) {
        return view.MovedTo(range.at(view.data()), memory_->kind());
      }
    }
    return view.MovedTo(nullptr, memory_->kind());
  }
  AttentionBlock Of(const AttentionBlock& block) {
    AttentionBlock moved = {Of(block.query), Of(block.key), Of(block.value),
                            block.kind, block.scale};
    if (block.first_keys.has_value()) moved.first_keys = Of(*block.first_keys);
    return moved;
  }
  AttentionState Of(const AttentionState& state) {
    return {Of(state.output), Of(state.log_sum_exp)};
  }
  AttentionGradients Of(const AttentionGradients& x) {
    return {Of(x.output_gradient), Of(x.output),         Of(x.log_sum_exp),
            Of(x.delta),           Of(x.query_gradient), Of(x.key_gradient),
            Of(x.value_gradient)};
  }

  void Add(const AttentionBlock& block) {
    for (const auto& view : {block.query, block.key, block.value}) Add(view);
    if (block.first_keys.has_value()) Add(*block.first_keys);
  }
  void Add(const AttentionState& state) {
    for (const auto& view : {state.output, state.log_sum_exp}) Add(view);
  }
  void Add(const AttentionGradients& x) {
    for (const ConstTensorView& view :
         {x.output_gradient, x.output, x.log_sum_exp, x.delta}) {
      Add(view);
    }
    for (const TensorView& view :
         {x.query_gradient, x.key_gradient, x.value_gradient}) {
      Add(view);
    }
  }

 private:
  struct Range {
    const std::byte* begin;
    size_t size;
    Buffer copy;

    const std::byte* end() const { return begin + size; }
    std::byte* at(const std::byte* original) {
      const size_t shift =
          reinterpret_cast<uintptr_t>(begin) % kDefaultAlignment;
      return copy.data() + shift + (original - begin);
    }
  };

  std::shared_ptr<MemoryResource> memory_;
  std::vector<Range> ranges_;
};

class UploadingOps final : public Ops {
 public:
  UploadingOps(Ops& ops, Ops* same_bits) : ops_(ops), same_bits_(same_bits) {}

  Queue& queue() const override { return ops_.queue(); }

  absl::Status Gemm(const GemmOptions& options, ConstTensorView a,
                    ConstTensorView b, TensorView c) override {
    return Run([&](Ops& ops, auto... x) { return ops.Gemm(options, x...); }, a,
               b, c);
  }
  absl::Status CastTranspose(ConstTensorView x, ConstTensorView scale,
                             TensorView amax, TensorView y,
                             TensorView transposed) override {
    return Run([](Ops& ops, auto... x) { return ops.CastTranspose(x...); }, x,
               scale, amax, y, transposed);
  }
  absl::Status GemmFp8(const Fp8GemmOptions& options, ConstTensorView a,
                       ConstTensorView a_inverse, ConstTensorView b,
                       ConstTensorView b_inverse, TensorView c) override {
    return Run([&](Ops& ops, auto... x) { return ops.GemmFp8(options, x...); },
               a, a_inverse, b, b_inverse, c);
  }
  absl::Status UpdateScales(int margin, ConstTensorView largest,
                            TensorView amax, TensorView history,
                            TensorView scale, TensorView inverse) override {
    return Run(
        [&](Ops& ops, auto... x) { return ops.UpdateScales(margin, x...); },
        largest, amax, history, scale, inverse);
  }
  absl::Status AddBias(ConstTensorView bias, TensorView x) override {
    return Run([](Ops& ops, auto... x) { return ops.AddBias(x...); }, bias, x);
  }
  absl::Status SumRows(ConstTensorView gradient,
                       TensorView bias_gradient) override {
    return Run([](Ops& ops, auto... x) { return ops.SumRows(x...); }, gradient,
               bias_gradient);
  }
  absl::Status Copy(ConstTensorView x, TensorView y) override {
    return Run([](Ops& ops, auto... x) { return ops.Copy(x...); }, x, y);
  }
  absl::Status Add(ConstTensorView x, TensorView y) override {
    return Run([](Ops& ops, auto... x) { return ops.Add(x...); }, x, y);
  }
  absl::Status Scale(double factor, TensorView x) override {
    return Run([&](Ops& ops, TensorView x) { return ops.Scale(factor, x); }, x);
  }
  absl::Status Fill(double value, TensorView x) override {
    return Run([&](Ops& ops, TensorView x) { return ops.Fill(value, x); }, x);
  }
  absl::Status Cast(ConstTensorView x, TensorView y) override {
    return Run([](Ops& ops, auto... x) { return ops.Cast(x...); }, x, y);
  }
  absl::Status Dropout(const DropoutMask& mask, TensorView x) override {
    return Run([&](Ops& ops, TensorView x) { return ops.Dropout(mask, x); }, x);
  }
  absl::Status RmsNorm(double epsilon, ConstTensorView x,
                       ConstTensorView weight, TensorView y,
                       TensorView inverse) override {
    return Run([&](Ops& ops, auto... x) { return ops.RmsNorm(epsilon, x...); },
               x, weight, y, inverse);
  }
  absl::Status RmsNormInputGradient(ConstTensorView gradient, ConstTensorView x,
                                    ConstTensorView weight,
                                    ConstTensorView inverse,
                                    TensorView x_gradient) override {
    return Run(
        [](Ops& ops, auto... x) { return ops.RmsNormInputGradient(x...); },
        gradient, x, weight, inverse, x_gradient);
  }
  absl::Status AddRmsNorm(double epsilon, ConstTensorView residual,
                          ConstTensorView weight, TensorView x, TensorView y,
                          TensorView inverse) override {
    return Run(
        [&](Ops& ops, auto... x) { return ops.AddRmsNorm(epsilon, x...); },
        residual, weight, x, y, inverse);
  }
  absl::Status AddRmsNormInputGradient(ConstTensorView gradient,
                                       ConstTensorView x,
                                       ConstTensorView weight,
                                       ConstTensorView inverse,
                                       ConstTensorView residual_gradient,
                                       TensorView x_gradient) override {
    return Run(
        [](Ops& ops, auto... x) { return ops.AddRmsNormInputGradient(x...); },
        gradient, x, weight, inverse, residual_gradient, x_gradient);
  }
  absl::Status RmsNormWeightGradient(ConstTensorView gradient,
                                     ConstTensorView x, ConstTensorView inverse,
                                     TensorView weight_gradient) override {
    return Run(
        [](Ops& ops, auto... x) { return ops.RmsNormWeightGradient(x...); },
        gradient, x, inverse, weight_gradient);
  }
  absl::Status Glu(GluKind kind, ConstTensorView gate, ConstTensorView up,
                   TensorView y) override {
    return Run([kind](Ops& ops, auto... x) { return ops.Glu(kind, x...); },
               gate, up, y);
  }
  absl::Status GluGradient(GluKind kind, ConstTensorView gradient,
                           ConstTensorView gate, ConstTensorView up,
                           TensorView gate_gradient,
                           TensorView up_gradient) override {
    return Run(
        [kind](Ops& ops, auto... x) { return ops.GluGradient(kind, x...); },
        gradient, gate, up, gate_gradient, up_gradient);
  }
  absl::Status Rotate(const RotaryFrequencies& frequencies, bool inverse,
                      ConstTensorView positions, TensorView x) override {
    return Run(
        [&](Ops& ops, auto... x) {
          return ops.Rotate(frequencies, inverse, x...);
        },
        positions, x);
  }
  absl::Status GatherRows(ConstTensorView table, IndexRange held,
                          ConstTensorView ids, TensorView y) override {
    return Run(
        [&](Ops& ops, ConstTensorView table, ConstTensorView ids,
            TensorView y) { return ops.GatherRows(table, held, ids, y); },
        table, ids, y);
  }
  absl::Status AddRows(ConstTensorView gradient, IndexRange held,
                       ConstTensorView ids,
                       TensorView table_gradient) override {
    return Run(
        [&](Ops& ops, ConstTensorView gradient, ConstTensorView ids,
            TensorView table) {
          return ops.AddRows(gradient, held, ids, table);
        },
        gradient, ids, table_gradient);
  }
  absl::Status RowMax(ConstTensorView logits, TensorView largest) override {
    return Run([](Ops& ops, auto... x) { return ops.RowMax(x...); }, logits,
               largest);
  }
  absl::Status SumExp(ConstTensorView logits, ConstTensorView largest,
                      TensorView sum) override {
    return Run([](Ops& ops, auto... x) { return ops.SumExp(x...); }, logits,
               largest, sum);
  }
  absl::Status Pick(ConstTensorView logits, IndexRange held,
                    ConstTensorView targets, TensorView picked) override {
    return Run(
        [&](Ops& ops, ConstTensorView logits, ConstTensorView targets,
            TensorView picked) {
          return ops.Pick(logits, held, targets, picked);
        },
        logits, targets, picked);
  }
  absl::Status CrossEntropyLosses(ConstTensorView largest, ConstTensorView sum,
                                  ConstTensorView picked,
                                  ConstTensorView targets,
                                  TensorView losses) override {
    return Run([](Ops& ops, auto... x) { return ops.CrossEntropyLosses(x...); },
               largest, sum, picked, targets, losses);
  }
  absl::Status CrossEntropyGradient(ConstTensorView largest,
                                    ConstTensorView sum, IndexRange held,
                                    ConstTensorView targets,
                                    ConstTensorView scales,
                                    const LossTerms& terms,
                                    TensorView logits) override {
    return Run(
        [&](Ops& ops, ConstTensorView largest, ConstTensorView sum,
            ConstTensorView targets, ConstTensorView scales,
            TensorView logits) {
          return ops.CrossEntropyGradient(largest, sum, held, targets, scales,
                                          terms, logits);
        },
        largest, sum, targets, scales, logits);
  }
  absl::Status Route(const RouterOptions& options, ConstTensorView logits,
                     ConstTensorView bias, TensorView weights,
                     TensorView experts) override {
    return Run([&](Ops& ops, auto... x) { return ops.Route(options, x...); },
               logits, bias, weights, experts);
  }
  absl::Status RouteGradient(const RouterOptions& options,
                             ConstTensorView logits, ConstTensorView experts,
                             ConstTensorView weights_gradient,
                             ConstTensorView balance, double z_loss,
                             TensorView logits_gradient) override {
    return Run(
        [&](Ops& ops, ConstTensorView logits, ConstTensorView experts,
            ConstTensorView weights_gradient, ConstTensorView balance,
            TensorView logits_gradient) {
          return ops.RouteGradient(options, logits, experts, weights_gradient,
                                   balance, z_loss, logits_gradient);
        },
        logits, experts, weights_gradient, balance, logits_gradient);
  }
  absl::Status ScaleRows(ConstTensorView scales, ConstTensorView x,
                         TensorView y) override {
    return Run([](Ops& ops, auto... x) { return ops.ScaleRows(x...); }, scales,
               x, y);
  }
  absl::Status ScaleRowsGradient(ConstTensorView gradient,
                                 ConstTensorView scales, ConstTensorView x,
                                 TensorView x_gradient,
                                 TensorView scales_gradient) override {
    return Run([](Ops& ops, auto... x) { return ops.ScaleRowsGradient(x...); },
               gradient, scales, x, x_gradient, scales_gradient);
  }
  absl::Status Sum(double factor, ConstTensorView x,
                   TensorView total) override {
    return Run([&](Ops& ops, auto... x) { return ops.Sum(factor, x...); }, x,
               total);
  }
  absl::Status Attend(const AttentionBlock& block,
                      const AttentionState& state) override {
    return Run([](Ops& ops, const auto&... x) { return ops.Attend(x...); },
               block, state);
  }
  absl::Status AttendGradient(const AttentionBlock& block,
                              const AttentionGradients& gradients) override {
    return Run(
        [](Ops& ops, const auto&... x) { return ops.AttendGradient(x...); },
        block, gradients);
  }
  absl::Status RowDots(ConstTensorView output, ConstTensorView output_gradient,
                       TensorView dots) override {
    return Run([](Ops& ops, auto... x) { return ops.RowDots(x...); }, output,
               output_gradient, dots);
  }

 private:
  template <typename Call, typename... Operands>
  absl::Status Run(const Call& call, const Operands&... operands) {
    Copies expected(HostMemory());
    if (same_bits_ != nullptr) {
      (expected.Add(operands), ...);
      TESSERA_RETURN_IF_ERROR(expected.Allocate());
      TESSERA_RETURN_IF_ERROR(expected.ForEach(
          [](std::span<std::byte> original, std::span<std::byte> copy) {
            std::memcpy(copy.data(), original.data(), copy.size());
            return absl::OkStatus();
          }));
      // An error is expected from both.
      call(*same_bits_, expected.Of(operands)...).IgnoreError();
    }
    TESSERA_RETURN_IF_ERROR(RunOnDevice(call, operands...));
    return expected.ForEach(
        [](std::span<std::byte> original, std::span<std::byte> copy) {
          EXPECT_EQ(std::memcmp(original.data(), copy.data(), copy.size()), 0)
              << "results differ from those on the host";
          return absl::OkStatus();
        });
  }

  template <typename Call, typename... Operands>
  absl::Status RunOnDevice(const Call& call, const Operands&... operands) {
    StagingPool staging(queue());
    Copies copies(queue().device().memory());
    (copies.Add(operands), ...);
    TESSERA_RETURN_IF_ERROR(copies.Allocate());
    TESSERA_RETURN_IF_ERROR(copies.ForEach(
        [&](std::span<std::byte> original, std::span<std::byte> copy) {
          return staging.Upload(original, copy);
        }));
    // The copies live until the queue is done with them.
    absl::Status status = call(ops_, copies.Of(operands)...);
    status.Update(queue().Synchronize());
    TESSERA_RETURN_IF_ERROR(status);
    return copies.ForEach([&](std::span<std::byte> original,
                              std::span<std::byte> copy) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const Download download,
                               staging.StartDownload(copy));
      TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                               download.Wait());
      // Constant operands are not written.
      if (std::memcmp(original.data(), bytes.data(), bytes.size()) != 0) {
        std::memcpy(original.data(), bytes.data(), bytes.size());
      }
      return absl::OkStatus();
    });
  }

  Ops& ops_;
  Ops* const same_bits_;
};

}  // namespace

std::unique_ptr<Ops> UploadOperands(Ops& ops, Ops* same_bits) {
  return std::make_unique<UploadingOps>(ops, same_bits);
}

DeviceCopy::DeviceCopy(Queue& queue, const TestTensor& tensor)
    : queue_(queue), view_(tensor.view()) {
  absl::StatusOr<Buffer> memory =
      Buffer::Allocate(queue.device().memory(), tensor.bytes().size());
  TESSERA_EXPECT_OK(memory);
  memory_ = *std::move(memory);
  view_ = view_.MovedTo(memory_.data(), memory_.kind());
  StagingPool staging(queue);
  TESSERA_EXPECT_OK(staging.Upload(tensor.bytes(), memory_.bytes()));
  TESSERA_EXPECT_OK(queue.Synchronize());  // The pool goes.
}

void DeviceCopy::ReadTo(TestTensor& tensor) const {
  StagingPool staging(queue_);
  const absl::StatusOr<Download> download =
      staging.StartDownload(memory_.bytes());
  TESSERA_ASSERT_OK(download);
  const absl::StatusOr<std::span<const std::byte>> bytes = download->Wait();
  TESSERA_ASSERT_OK(bytes);
  std::memcpy(tensor.view().data(), bytes->data(), bytes->size());
}

void OpsConformanceTest::SetUp() {
  absl::StatusOr<TestedOps> tested = GetParam().create();
  if (absl::IsUnavailable(tested.status())) GTEST_SKIP() << tested.status();
  TESSERA_ASSERT_OK(tested);
  tested_ = *std::move(tested);
  ops_ = tested_.ops.get();
  if (!IsHostAccessible(queue().device().memory()->kind())) {
    uploading_ = UploadOperands(*tested_.ops, tested_.same_bits.get());
    ops_ = uploading_.get();
  }
}

}  // namespace tessera::tensor_parallel
