#include "zero3/state/state_device.h"

#include <array>
#include <cstring>

#include "collectives/reduction/combine.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {
namespace {

class OnHost final : public StateOps {
 public:
  bool has_values() const override { return true; }
  void Zero(std::span<std::byte> bytes) override {
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
  }
  void Copy(std::span<const std::byte> from, std::span<std::byte> to) override {
    if (from.empty() || from.data() == to.data()) return;
    std::memcpy(to.data(), from.data(), from.size());
  }
  void Add(DType dtype, const std::byte* from, std::byte* to,
           int64_t count) override {
    const std::array<const void*, 2> sources = {to, from};
    void* const target = to;
    collectives::Combine(
        collectives::Combination::Partial(collectives::Reduction::Sum(), dtype),
        sources, std::span(&target, 1), count);
  }
  absl::Status EncodeInt8(DType dtype, std::span<const std::byte> values,
                          std::span<std::byte> encoded) override {
    return zero3::EncodeInt8(dtype, values, encoded);
  }
  absl::Status DecodeInt8(std::span<const std::byte> encoded, DType dtype,
                          std::span<std::byte> values) override {
    return zero3::DecodeInt8(encoded, dtype, values);
  }
  absl::Status SumInt8(std::span<const std::span<const std::byte>> sources,
                       float divisor, DType dtype,
                       std::span<std::byte> values) override {
    return zero3::SumInt8(sources, divisor, dtype, values);
  }
  absl::Status SumInt8Encoded(
      std::span<const std::span<const std::byte>> sources, int64_t elements,
      std::span<std::byte> encoded) override {
    return zero3::SumInt8Encoded(sources, elements, encoded);
  }
  absl::StatusOr<offload::GradientStatistics> Measure(
      const offload::ConstTypedSpan& gradient) override {
    return offload::MeasureGradient(gradient);
  }
  absl::Status Step(offload::AdamW& optimizer, int64_t step,
                    const offload::StepScale& scale,
                    const offload::ParameterRange& range) override {
    return optimizer.Step(step, scale, std::span(&range, 1));
  }
  absl::Status Step(offload::Sgd& optimizer, int64_t step,
                    const offload::StepScale& scale,
                    const offload::ParameterRange& range) override {
    return optimizer.Step(step, scale, std::span(&range, 1));
  }
};

class Dry final : public StateOps {
 public:
  bool has_values() const override { return false; }
  void Zero(std::span<std::byte>) override {}
  void Copy(std::span<const std::byte>, std::span<std::byte>) override {}
  void Add(DType, const std::byte*, std::byte*, int64_t) override {}
  absl::Status EncodeInt8(DType, std::span<const std::byte>,
                          std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status DecodeInt8(std::span<const std::byte>, DType,
                          std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status SumInt8(std::span<const std::span<const std::byte>>, float,
                       DType, std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status SumInt8Encoded(std::span<const std::span<const std::byte>>,
                              int64_t, std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<offload::GradientStatistics> Measure(
      const offload::ConstTypedSpan&) override {
    return offload::GradientStatistics{};
  }
  absl::Status Step(offload::AdamW&, int64_t, const offload::StepScale&,
                    const offload::ParameterRange&) override {
    return absl::OkStatus();
  }
  absl::Status Step(offload::Sgd&, int64_t, const offload::StepScale&,
                    const offload::ParameterRange&) override {
    return absl::OkStatus();
  }
};

}  // namespace

// Neither has state.
std::shared_ptr<StateOps> HostStateOps() {
  static const auto& ops =
      *new std::shared_ptr<StateOps>(std::make_shared<OnHost>());
  return ops;
}

std::shared_ptr<StateOps> DryStateOps() {
  static const auto& ops =
      *new std::shared_ptr<StateOps>(std::make_shared<Dry>());
  return ops;
}

}  // namespace tessera::zero3
