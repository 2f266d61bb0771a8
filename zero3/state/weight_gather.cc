#include "zero3/state/weight_gather.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {
namespace {

// The sizes of an even split; the first ranks get the remainder.
std::vector<int64_t> Split(int64_t elements, int64_t ranks) {
  const int64_t slot = (elements + ranks - 1) / ranks;
  std::vector<int64_t> slots;
  for (int64_t r = 0; r < ranks; ++r) {
    slots.push_back(std::clamp<int64_t>(elements - r * slot, 0, slot));
  }
  return slots;
}

int64_t Sum(std::span<const int64_t> counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

// Engines are faster with even blocks.
std::vector<int64_t> CountsOf(const std::vector<int64_t>& slots) {
  const bool even = std::adjacent_find(slots.begin(), slots.end(),
                                       std::not_equal_to<>()) == slots.end();
  return even ? std::vector<int64_t>() : slots;
}

template <typename Byte>
std::span<Byte> Block(std::span<Byte> whole, std::span<const int64_t> slots,
                      int64_t rank, int64_t width) {
  const auto index = static_cast<size_t>(rank);
  return whole.subspan(static_cast<size_t>(Sum(slots.first(index)) * width),
                       static_cast<size_t>(slots[index] * width));
}

}  // namespace

WeightGather::WeightGather(const StateContext& context, ParameterId id,
                           const GatherOptions& options,
                           const GatherGroups& groups, BufferPool& pool)
    : context_(context),
      parameter_(context.model()[id]),
      groups_(groups),
      pool_(pool),
      quantized_(options.quantized && context.layout.ranks() > 1 &&
                 HasInt8Form(parameter_.dtype())) {
  for (int64_t r = 0; r < context.layout.ranks(); ++r) {
    slots_.push_back(context.layout.ExtentOf(topology::Rank(r), id).slot);
  }
  if (groups.secondary != nullptr) {
    secondary_slots_ =
        Split(context.layout.GatheredElements(id), groups.secondary->size());
  }
}

WeightGather::~WeightGather() {
  if (work_) work_->Wait().IgnoreError();
  pool_.Give(std::move(encoded_));
}

std::span<std::byte> WeightGather::SlotIn(std::span<std::byte> whole) const {
  return Block(whole, slots_, context_.rank.value(),
               SizeInBytes(parameter_.dtype()));
}

absl::Status WeightGather::CheckSizes(std::span<const std::byte> own,
                                      std::span<const std::byte> whole) const {
  const int64_t width = SizeInBytes(parameter_.dtype());
  const int64_t slot =
      slots_[static_cast<size_t>(context_.rank.value())] * width;
  const int64_t all = Sum(slots_) * width;
  if ((NeedsOwn() && static_cast<int64_t>(own.size()) != slot) ||
      static_cast<int64_t>(whole.size()) != all) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a gather of \"", parameter_.name(), "\" from ", own.size(),
        " bytes to ", whole.size(), "; expected ", slot, " and ", all));
  }
  return absl::OkStatus();
}

absl::Status WeightGather::Start(std::span<const std::byte> own,
                                 std::span<std::byte> whole,
                                 const QueuePoint& ready) {
  if (work_) {
    return absl::FailedPreconditionError(
        absl::StrCat("a gather of \"", parameter_.name(),
                     "\" is in progress: finish it before the next one"));
  }
  TESSERA_RETURN_IF_ERROR(CheckSizes(own, whole));
  // Gives back the buffer of a failed Start.
  pool_.Give(std::exchange(encoded_, {}));
  whole_ = whole;
  starts_secondary_ = has_secondary_;
  if (has_secondary_) return StartSecondary(ready);
  if (quantized_) return StartQuantized(own);
  const DType dtype = parameter_.dtype();
  return StartOn(*groups_.shard,
                 collectives::ConstBuffer(
                     own.data(),
                     slots_[static_cast<size_t>(context_.rank.value())], dtype),
                 collectives::Buffer(whole.data(), Sum(slots_), dtype), slots_,
                 ready);
}

// Ranks that gather different parameters get an error.
absl::Status WeightGather::StartOn(collectives::Communicator& group,
                                   collectives::ConstBuffer own,
                                   collectives::Buffer whole,
                                   const std::vector<int64_t>& counts,
                                   const QueuePoint& ready) {
  collectives::Operation operation =
      collectives::AllGatherOf(own, whole, CountsOf(counts));
  operation.label = static_cast<uint32_t>(parameter_.id.value()) + 1;
  TESSERA_ASSIGN_OR_RETURN(
      work_, group.Start(std::move(operation), {.after = ready.event}));
  return absl::OkStatus();
}

absl::Status WeightGather::StartQuantized(std::span<const std::byte> own) {
  std::vector<int64_t> bytes;
  for (const int64_t slot : slots_) bytes.push_back(Int8Bytes(slot));
  TESSERA_ASSIGN_OR_RETURN(
      encoded_,
      pool_.Take(absl::StrCat(parameter_.name(), " (int8)"), Sum(bytes)));
  const std::span<std::byte> mine =
      Block(encoded_.bytes(), bytes, context_.rank.value(), 1);
  TESSERA_RETURN_IF_ERROR(
      context_.device.ops->Run(op::EncodeInt8{parameter_.dtype(), own, mine}));
  TESSERA_ASSIGN_OR_RETURN(const QueuePoint encoded, context_.device.Mark());
  return StartOn(
      *groups_.shard,
      collectives::ConstBuffer(mine.data(), static_cast<int64_t>(mine.size()),
                               DType::kU8),
      collectives::Buffer(encoded_.bytes().data(), Sum(bytes), DType::kU8),
      bytes, encoded);
}

absl::Status WeightGather::StartSecondary(const QueuePoint& ready) {
  const DType dtype = parameter_.dtype();
  const int64_t mine =
      secondary_slots_[static_cast<size_t>(groups_.secondary->rank().value())];
  return StartOn(
      *groups_.secondary,
      collectives::ConstBuffer(secondary_.bytes().data(), mine, dtype),
      collectives::Buffer(whole_.data(), Sum(secondary_slots_), dtype),
      secondary_slots_, Later(ready, secondary_written_));
}

absl::Status WeightGather::Finish() {
  if (!work_) return absl::OkStatus();
  absl::Status done = context_.queue().Wait(work_->event());
  work_.reset();
  if (done.ok() && !starts_secondary_) {
    if (quantized_) done = Decode();
    if (done.ok() && groups_.secondary != nullptr) done = KeepSecondary();
  }
  pool_.Give(std::exchange(encoded_, {}));
  whole_ = {};
  return done;
}

absl::Status WeightGather::Decode() {
  std::vector<int64_t> bytes;
  for (const int64_t slot : slots_) bytes.push_back(Int8Bytes(slot));
  const DType dtype = parameter_.dtype();
  for (int64_t r = 0; r < context_.layout.ranks(); ++r) {
    TESSERA_RETURN_IF_ERROR(context_.device.ops->DecodeInt8(
        Block(encoded_.bytes(), bytes, r, 1), dtype,
        Block(whole_, slots_, r, SizeInBytes(dtype))));
  }
  return absl::OkStatus();
}

std::span<std::byte> WeightGather::SecondaryIn(
    std::span<std::byte> whole) const {
  return Block(whole, secondary_slots_, groups_.secondary->rank().value(),
               SizeInBytes(parameter_.dtype()));
}

absl::Status WeightGather::KeepSecondary() {
  const std::span<const std::byte> part = SecondaryIn(whole_);
  if (secondary_.bytes().empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        secondary_,
        AccountedMemory::Allocate(
            context_.device, absl::StrCat(parameter_.name(), " (second copy)"),
            static_cast<int64_t>(part.size()), offload::Purpose::kParameters));
  }
  TESSERA_RETURN_IF_ERROR(context_.device.ops->Copy(part, secondary_.bytes()));
  TESSERA_ASSIGN_OR_RETURN(secondary_written_, context_.device.Mark());
  has_secondary_ = true;
  return absl::OkStatus();
}

// On a device, freeing memory would wait for enqueued work.
void WeightGather::Forget() {
  has_secondary_ = false;
  if (context_.queue().is_immediate()) secondary_ = {};
}

int64_t WeightGather::held_bytes() const {
  return static_cast<int64_t>(encoded_.bytes().size() +
                              secondary_.bytes().size());
}

}  // namespace tessera::zero3
