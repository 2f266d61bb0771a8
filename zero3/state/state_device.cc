#include "zero3/state/state_device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/status_macros.h"
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

absl::StatusOr<AccountedMemory> AccountedMemory::Allocate(
    const StateDevice& device, std::string_view key, int64_t bytes,
    offload::Purpose purpose) {
  AccountedMemory memory;
  TESSERA_ASSIGN_OR_RETURN(
      memory.reservation_,
      offload::Accounting::Reserve(device.accounting, key, bytes, purpose));
  TESSERA_ASSIGN_OR_RETURN(
      memory.memory_,
      Buffer::Allocate(device.memory, static_cast<size_t>(bytes)));
  return memory;
}

absl::StatusOr<AccountedMemory> BufferPool::Take(std::string_view key,
                                                 int64_t bytes) {
  AccountedMemory block;
  const auto found = free_.find(bytes);
  if (found != free_.end()) {
    block = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    free_bytes_ -= bytes;
  } else {
    const int64_t room = std::max(most_used_bytes_, used_bytes_ + bytes);
    DropFree(free_bytes_ + used_bytes_ + bytes - room);
    TESSERA_ASSIGN_OR_RETURN(
        block, AccountedMemory::Allocate(device_, key, bytes,
                                         offload::Purpose::kBuffers));
  }
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

void BufferPool::Give(AccountedMemory block) {
  const auto bytes = static_cast<int64_t>(block.bytes().size());
  if (bytes == 0) return;
  used_bytes_ -= bytes;
  free_bytes_ += bytes;
  free_[bytes].push_back(std::move(block));
}

void BufferPool::Trim() {
  free_.clear();
  free_bytes_ = 0;
  most_used_bytes_ = used_bytes_;
}

// Frees the largest blocks first, until at least this many bytes are free.
void BufferPool::DropFree(int64_t bytes) {
  while (bytes > 0 && !free_.empty()) {
    const auto largest = std::prev(free_.end());
    bytes -= largest->first;
    free_bytes_ -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) free_.erase(largest);
  }
}

}  // namespace tessera::zero3
