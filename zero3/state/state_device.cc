#include "zero3/state/state_device.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/reduction.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {

namespace {

MemoryAccess Reads(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes),
          false};
}

MemoryAccess Writes(const void* data, int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<size_t>(bytes),
          true};
}

using Accesses = absl::InlinedVector<MemoryAccess, 6>;

void AddMoment(const offload::MomentSpan& moment, Accesses& accesses) {
  if (moment.size == 0) return;
  const auto scales = static_cast<int64_t>(moment.largest.size_bytes());
  const int64_t bytes =
      offload::MomentBytes(moment.format, moment.size).value_or(0);
  accesses.push_back(Writes(moment.values, bytes - scales));
  if (scales > 0) accesses.push_back(Writes(moment.largest.data(), scales));
}

Accesses AccessesOf(const offload::ParameterRange& range) {
  Accesses accesses = {
      Writes(range.parameter.data(), range.parameter.size_in_bytes()),
      Reads(range.gradient.data(), range.gradient.size_in_bytes())};
  AddMoment(range.first, accesses);
  AddMoment(range.second, accesses);
  if (!range.copy.empty()) {
    accesses.push_back(Writes(range.copy.data(), range.copy.size_in_bytes()));
  }
  return accesses;
}

template <typename Byte>
offload::BasicTypedSpan<Byte> At(const DeviceAddresses& at,
                                 const offload::BasicTypedSpan<Byte>& span) {
  return {at(span.data()), span.dtype(), span.size()};
}

offload::ParameterRange At(const DeviceAddresses& at,
                           offload::ParameterRange range) {
  range.parameter = At(at, range.parameter);
  range.gradient = At(at, range.gradient);
  range.copy = At(at, range.copy);
  for (offload::MomentSpan* const moment : {&range.first, &range.second}) {
    moment->values = at(moment->values);
    moment->largest = at(moment->largest);
  }
  return range;
}

class HostKernels final : public StateKernels {
 public:
  absl::Status Add(DType dtype, const std::byte* from, std::byte* to,
                   int64_t count) override {
    const std::array<const void*, 2> sources = {to, from};
    void* const target = to;
    collectives::Combine(
        collectives::Combination::Partial(collectives::Reduction::Sum(), dtype),
        sources, std::span(&target, 1), count);
    return absl::OkStatus();
  }
  absl::Status EncodeInt8(DType dtype, std::span<const std::byte> values,
                          std::span<std::byte> encoded) override {
    return zero3::EncodeInt8(dtype, values, encoded);
  }
  absl::Status SumInt8(Sources sources, float divisor, DType dtype,
                       std::span<std::byte> values) override {
    return zero3::SumInt8(sources, divisor, dtype, values);
  }
  absl::Status SumInt8Encoded(Sources sources, int64_t elements,
                              std::span<std::byte> encoded) override {
    return zero3::SumInt8Encoded(sources, elements, encoded);
  }
  absl::Status Measure(const offload::ConstTypedSpan& gradient,
                       std::span<std::byte> result) override {
    TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics statistics,
                             offload::MeasureGradient(gradient));
    std::memcpy(result.data(), &statistics, sizeof statistics);
    return absl::OkStatus();
  }
  absl::Status Step(offload::AdamW& optimizer,
                    const offload::RangesStep& prepared,
                    const offload::ParameterRange& range) override {
    return optimizer.Run(prepared, std::span(&range, 1));
  }
  absl::Status Step(offload::Sgd& optimizer,
                    const offload::RangesStep& prepared,
                    const offload::ParameterRange& range) override {
    return optimizer.Run(prepared, std::span(&range, 1));
  }
};

// Kernels as functions that the queue runs: at once if it is immediate.
class OnQueue final : public StateOps {
 public:
  OnQueue(Queue& queue, std::shared_ptr<StateKernels> kernels)
      : queue_(queue), kernels_(std::move(kernels)) {}

  bool has_values() const override { return true; }
  absl::Status Zero(std::span<std::byte> bytes) override {
    return queue_.Fill(std::byte{0}, bytes);
  }
  absl::Status Copy(std::span<const std::byte> from,
                    std::span<std::byte> to) override {
    return queue_.Copy(from, to.first(from.size()));
  }
  absl::Status Add(DType dtype, const std::byte* from, std::byte* to,
                   int64_t count) override {
    TESSERA_RETURN_IF_ERROR(CheckSum(dtype));
    const int64_t bytes = count * SizeInBytes(dtype);
    return Launch("sum of gradients", {Reads(from, bytes), Writes(to, bytes)},
                  [=, kernels = kernels_](const DeviceAddresses& at) {
                    return kernels->Add(dtype, at(from), at(to), count);
                  });
  }
  absl::Status EncodeInt8(DType dtype, std::span<const std::byte> values,
                          std::span<std::byte> encoded) override {
    TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(dtype, values.size(), encoded));
    return Launch("encode int8", {ReadsFrom(values), WritesTo(encoded)},
                  [=, kernels = kernels_](const DeviceAddresses& at) {
                    return kernels->EncodeInt8(dtype, at(values), at(encoded));
                  });
  }
  absl::Status DecodeInt8(std::span<const std::byte> encoded, DType dtype,
                          std::span<std::byte> values) override {
    return SumInt8(std::span(&encoded, 1), 1, dtype, values);
  }
  absl::Status SumInt8(std::span<const std::span<const std::byte>> sources,
                       float divisor, DType dtype,
                       std::span<std::byte> values) override {
    for (const auto source : sources) {
      TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(dtype, values.size(), source));
    }
    return Launch("sum of int8", AccessesOf(sources, values),
                  [=, kernels = kernels_,
                   all = Copied(sources)](const DeviceAddresses& at) {
                    return kernels->SumInt8(At(at, all), divisor, dtype,
                                            at(values));
                  });
  }
  absl::Status SumInt8Encoded(
      std::span<const std::span<const std::byte>> sources, int64_t elements,
      std::span<std::byte> encoded) override {
    const auto bytes = static_cast<size_t>(elements) * sizeof(float);
    TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(DType::kF32, bytes, encoded));
    for (const auto source : sources) {
      TESSERA_RETURN_IF_ERROR(CheckInt8Sizes(DType::kF32, bytes, source));
    }
    return Launch("encoded sum of int8", AccessesOf(sources, encoded),
                  [=, kernels = kernels_,
                   all = Copied(sources)](const DeviceAddresses& at) {
                    return kernels->SumInt8Encoded(At(at, all), elements,
                                                   at(encoded));
                  });
  }
  absl::Status Measure(const offload::ConstTypedSpan& gradient,
                       std::span<std::byte> result) override {
    TESSERA_RETURN_IF_ERROR(offload::CheckGradient(gradient));
    return Launch(
        "gradient statistics",
        {Reads(gradient.data(), gradient.size_in_bytes()), WritesTo(result)},
        [=, kernels = kernels_](const DeviceAddresses& at) {
          return kernels->Measure(zero3::At(at, gradient), at(result));
        });
  }
  absl::Status Step(offload::AdamW& optimizer, int64_t step,
                    const offload::StepScale& scale,
                    const offload::ParameterRange& range) override {
    return StepWith(optimizer, "AdamW", step, scale, range);
  }
  absl::Status Step(offload::Sgd& optimizer, int64_t step,
                    const offload::StepScale& scale,
                    const offload::ParameterRange& range) override {
    return StepWith(optimizer, "Sgd", step, scale, range);
  }

 private:
  using Sources = std::vector<std::span<const std::byte>>;

  static absl::Status CheckSum(DType dtype) {
    if (IsFloating(dtype) && collectives::IsReducible(dtype)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("sum of gradients of ", DTypeName(dtype),
                     "; give f64, f32, bf16 or f16"));
  }
  static Sources Copied(std::span<const std::span<const std::byte>> sources) {
    return {sources.begin(), sources.end()};
  }
  static Sources At(const DeviceAddresses& at, Sources sources) {
    for (std::span<const std::byte>& source : sources) source = at(source);
    return sources;
  }
  static Accesses AccessesOf(
      std::span<const std::span<const std::byte>> sources,
      std::span<std::byte> target) {
    Accesses accesses = {WritesTo(target)};
    for (const auto source : sources) accesses.push_back(ReadsFrom(source));
    return accesses;
  }

  template <typename Run>
  absl::Status Launch(std::string_view name, Accesses accesses, Run run) {
    if (queue_.is_immediate()) return run(DeviceAddresses());
    return queue_.Launch(
        {.name = name,
         .accesses = std::move(accesses),
         .run = [run = std::move(run)](
                    const DeviceAddresses& at) -> absl::StatusOr<Event> {
           TESSERA_RETURN_IF_ERROR(run(at));
           return Event();
         },
         .enqueues = kernels_->enqueues()});
  }

  template <typename Optimizer>
  absl::Status StepWith(Optimizer& optimizer, std::string_view name,
                        int64_t step, const offload::StepScale& scale,
                        const offload::ParameterRange& range) {
    TESSERA_ASSIGN_OR_RETURN(const offload::RangesStep prepared,
                             optimizer.Prepare(step, scale));
    TESSERA_RETURN_IF_ERROR(
        offload::CheckRanges(std::span(&range, 1), prepared.moments),
        Annotate(_, name));
    if (range.frozen) return absl::OkStatus();
    return Launch(
        name, zero3::AccessesOf(range),
        [=, kernels = kernels_, to = &optimizer](const DeviceAddresses& at) {
          return kernels->Step(*to, prepared, zero3::At(at, range));
        });
  }

  Queue& queue_;
  const std::shared_ptr<StateKernels> kernels_;
};

class Dry final : public StateOps {
 public:
  bool has_values() const override { return false; }
  absl::Status Zero(std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status Copy(std::span<const std::byte>, std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status Add(DType, const std::byte*, std::byte*, int64_t) override {
    return absl::OkStatus();
  }
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
  absl::Status Measure(const offload::ConstTypedSpan&,
                       std::span<std::byte>) override {
    return absl::OkStatus();
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

std::shared_ptr<StateOps> StateOpsOf(Queue& queue,
                                     std::shared_ptr<StateKernels> kernels) {
  return std::make_shared<OnQueue>(queue, std::move(kernels));
}

std::shared_ptr<StateOps> HostStateOps(Queue& queue) {
  static const auto& kernels =
      *new std::shared_ptr<StateKernels>(std::make_shared<HostKernels>());
  static const auto& host =
      *new std::shared_ptr<StateOps>(StateOpsOf(HostQueue(), kernels));
  return &queue == &HostQueue() ? host : StateOpsOf(queue, kernels);
}

std::shared_ptr<StateOps> DryStateOps() {
  static const auto& ops =
      *new std::shared_ptr<StateOps>(std::make_shared<Dry>());
  return ops;
}

absl::StatusOr<QueuePoint> StateDevice::Mark() const {
  if (queue->is_immediate()) return QueuePoint();
  TESSERA_ASSIGN_OR_RETURN(Event event, queue->Record());
  return QueuePoint{++*marks_, std::move(event)};
}

AccountedMemory& AccountedMemory::operator=(AccountedMemory&& other) {
  if (this == &other) return *this;
  AwaitWork();
  memory_ = std::move(other.memory_);
  reservation_ = std::move(other.reservation_);
  queue_ = other.queue_;
  last_use_ = std::move(other.last_use_);
  return *this;
}

// An error is that of the work, and is returned by the queue's next call.
void AccountedMemory::AwaitWork() {
  if (memory_.size() == 0 || queue_->is_immediate()) return;
  queue_->Synchronize().IgnoreError();
}

absl::StatusOr<AccountedMemory> AccountedMemory::Allocate(
    const StateDevice& device, std::string_view key, int64_t bytes,
    offload::Purpose purpose) {
  AccountedMemory memory;
  if (device.accounting != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        memory.reservation_,
        offload::Accounting::Reserve(device.accounting, key, bytes, purpose));
  }
  TESSERA_ASSIGN_OR_RETURN(
      memory.memory_,
      Buffer::Allocate(device.memory, static_cast<size_t>(bytes)));
  memory.queue_ = device.queue;
  return memory;
}

absl::StatusOr<AccountedMemory> BufferPool::Take(std::string_view key,
                                                 int64_t bytes) {
  SizeClass& blocks = blocks_[bytes];
  const auto free = static_cast<int64_t>(blocks.free.size());
  const bool late = reuse_ == Reuse::kDoubleBuffered;
  const bool wants_another =
      late && steps_ < 2 && blocks.ready == 0 && free < blocks.most_used;
  AccountedMemory block;
  if (free > 0 && !wants_another) {
    block = TakeFree(blocks, /*oldest=*/late);
  } else {
    absl::StatusOr<AccountedMemory> allocated = Allocate(key, bytes);
    if (!allocated.ok() && blocks.free.empty()) return allocated.status();
    block = allocated.ok() ? *std::move(allocated) : TakeFree(blocks, late);
  }
  blocks.most_used = std::max(blocks.most_used, ++blocks.used);
  used_bytes_ += bytes;
  most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
  return block;
}

AccountedMemory BufferPool::TakeFree(SizeClass& blocks, bool oldest) {
  AccountedMemory block =
      std::move(oldest ? blocks.free.front() : blocks.free.back());
  oldest ? blocks.free.pop_front() : blocks.free.pop_back();
  blocks.ready = std::max<int64_t>(blocks.ready - 1, 0);
  free_bytes_ -= static_cast<int64_t>(block.bytes().size());
  return block;
}

absl::StatusOr<AccountedMemory> BufferPool::AllocateNow(std::string_view key,
                                                        int64_t bytes) {
  return AccountedMemory::Allocate(device_, key, bytes,
                                   offload::Purpose::kBuffers);
}

absl::StatusOr<AccountedMemory> BufferPool::Allocate(std::string_view key,
                                                     int64_t bytes) {
  if (device_.queue->is_immediate()) {
    const int64_t room = std::max(most_used_bytes_, used_bytes_ + bytes);
    DropFree(free_bytes_ + used_bytes_ + bytes - room);
  }
  auto block = AllocateNow(key, bytes);
  if (!absl::IsResourceExhausted(block.status()) || free_bytes_ == 0 ||
      !blocks_[bytes].free.empty()) {
    return block;
  }
  DropAll();
  return AllocateNow(key, bytes);
}

void BufferPool::Give(AccountedMemory block) {
  if (!block.bytes().empty()) GiveWith(std::move(block), device_.Mark());
}

void BufferPool::Give(AccountedMemory block, Event last_use) {
  if (block.bytes().empty()) return;
  absl::StatusOr<QueuePoint> now = device_.Mark();
  if (now.ok()) now->event = std::move(last_use);
  GiveWith(std::move(block), std::move(now));
}

void BufferPool::GiveWith(AccountedMemory block,
                          absl::StatusOr<QueuePoint> last_use) {
  const auto bytes = static_cast<int64_t>(block.bytes().size());
  SizeClass& blocks = blocks_[bytes];
  --blocks.used;
  used_bytes_ -= bytes;
  if (!last_use.ok()) return;  // The queue returns its error to later calls.
  block.last_use_ = *std::move(last_use);
  free_bytes_ += bytes;
  blocks.free.push_back(std::move(block));
}

void BufferPool::BeginStep() {
  ++steps_;
  for (auto& [bytes, blocks] : blocks_) {
    blocks.ready = static_cast<int64_t>(blocks.free.size());
  }
}

void BufferPool::Trim() {
  if (!device_.queue->is_immediate()) return;
  DropAll();
  most_used_bytes_ = used_bytes_;
}

void BufferPool::DropAll() {
  for (auto& [bytes, blocks] : blocks_) {
    blocks.free.clear();
    blocks.ready = 0;
  }
  free_bytes_ = 0;
}

// Frees the largest blocks first, until at least this many bytes are free.
void BufferPool::DropFree(int64_t bytes) {
  for (auto it = blocks_.rbegin(); it != blocks_.rend() && bytes > 0;) {
    if (it->second.free.empty()) {
      ++it;
      continue;
    }
    it->second.free.pop_back();
    bytes -= it->first;
    free_bytes_ -= it->first;
  }
}

}  // namespace tessera::zero3
