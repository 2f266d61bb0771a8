#include "tools/comm_bench/operands.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tools {
namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::Operation;
using collectives::OpKind;
using topology::Rank;

constexpr int64_t kPage = 4096;
constexpr int64_t kLine = 64;
constexpr Rank kRoot = Rank(0);

// Buffers begin at cache lines. Not at pages: those of a batch would all fall
// into the same sets of the first cache.
int64_t RoundUp(int64_t bytes, int64_t to = kLine) {
  return (bytes + to - 1) / to * to;
}

// The elements that a rank reads and writes.
struct Sides {
  int64_t input = 0;
  int64_t output = 0;
};

Sides SidesOf(OpKind kind, int64_t count, int64_t world, bool is_root) {
  switch (kind) {
    case OpKind::kAllReduce:
      return {count, count};
    case OpKind::kReduce:
      return {count, is_root ? count : 0};
    case OpKind::kReduceScatter:
      return {world * count, count};
    case OpKind::kAllGather:
      return {count, world * count};
    case OpKind::kBroadcast:
      return {is_root ? count : 0, count};
    case OpKind::kGather:
      return {count, is_root ? world * count : 0};
    case OpKind::kScatter:
      return {is_root ? world * count : 0, count};
    case OpKind::kAllToAll:
      return {world * count, world * count};
    default:
      return {};
  }
}

// Where in place puts input and output in the memory of the larger one, in
// elements.
Sides InPlaceOffsets(OpKind kind, Sides sides, int64_t count, Rank rank) {
  const int64_t own = rank.value() * count;
  switch (kind) {
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      return {0, sides.input > sides.output ? own : 0};
    case OpKind::kAllGather:
    case OpKind::kGather:
      return {sides.output > sides.input ? own : 0, 0};
    default:
      return {0, 0};
  }
}

}  // namespace

bool IsParted(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllGather ||
         kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kAllToAll;
}

int64_t CountFor(OpKind kind, DType dtype, int64_t bytes, int64_t world) {
  if (kind == OpKind::kBarrier) return 0;
  const int64_t parts = IsParted(kind) ? world : 1;
  return std::max<int64_t>(1, bytes / SizeInBytes(dtype) / parts);
}

int64_t MessageBytes(OpKind kind, DType dtype, int64_t count, int64_t world) {
  return count * SizeInBytes(dtype) * (IsParted(kind) ? world : 1);
}

absl::StatusOr<Operands> Operands::Allocate(Communicator& communicator,
                                            const OperandShape& shape) {
  // What moves unchanged needs no exact sums.
  const collectives::Reduction reduction =
      Reduces(shape.kind) ? shape.reduction : collectives::Reduction::Max();
  TESSERA_ASSIGN_OR_RETURN(
      Pattern pattern,
      Pattern::Create(shape.dtype, reduction, communicator.size()));
  Operands operands(shape, communicator.rank(), communicator.size(),
                    std::move(pattern));
  TESSERA_RETURN_IF_ERROR(operands.TakeMemory(communicator));
  operands.MakeOperations();
  return operands;
}

std::byte* Operands::memory() const {
  return shared_ != nullptr ? shared_->bytes().data() : own_.get();
}

absl::Status Operands::TakeMemory(Communicator& communicator) {
  const Sides sides =
      SidesOf(shape_.kind, shape_.count, world_, rank_ == kRoot);
  const int64_t element = SizeInBytes(shape_.dtype);
  const int64_t in = RoundUp(sides.input * element);
  const int64_t out = RoundUp(sides.output * element);
  const int64_t bytes =
      shape_.slots * (shape_.in_place ? std::max(in, out) : in + out);
  if (bytes == 0) return absl::OkStatus();
  if (shape_.registered) {
    TESSERA_ASSIGN_OR_RETURN(shared_, communicator.AllocateShared(bytes));
    return absl::OkStatus();
  }
  own_.reset(static_cast<std::byte*>(
      std::aligned_alloc(kPage, static_cast<size_t>(RoundUp(bytes, kPage)))));
  if (own_ != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for buffers of ", bytes, " bytes"));
}

void Operands::MakeOperations() {
  const Sides sides =
      SidesOf(shape_.kind, shape_.count, world_, rank_ == kRoot);
  const int64_t element = SizeInBytes(shape_.dtype);
  const int64_t in = RoundUp(sides.input * element);
  const int64_t out = RoundUp(sides.output * element);
  const Sides offsets =
      shape_.in_place ? InPlaceOffsets(shape_.kind, sides, shape_.count, rank_)
                      : Sides{0, 0};
  std::byte* at = memory();
  for (int64_t slot = 0; slot < shape_.slots; ++slot) {
    std::byte* const output = shape_.in_place ? at : at + in;
    Operation operation;
    operation.kind = shape_.kind;
    operation.reduction = shape_.reduction;
    operation.root = kRoot;
    operation.input =
        Buffer(at + offsets.input * element, sides.input, shape_.dtype);
    operation.output =
        Buffer(output + offsets.output * element, sides.output, shape_.dtype);
    operations_.push_back(operation);
    at += shape_.in_place ? std::max(in, out) : in + out;
  }
}

void Operands::Rewrite(int64_t iteration) {
  constexpr int kPoison = 0xa5;
  for (const Operation& operation : operations_) {
    const auto output = operation.output.AsBytes();
    if (!output.empty()) std::memset(output.data(), kPoison, output.size());
    // The memory is this object's own; the operation only reads it.
    const Buffer input(const_cast<void*>(operation.input.data),
                       operation.input.count, operation.input.dtype);
    pattern_.Fill(input, rank_, 0, iteration);
  }
}

absl::Status Operands::Check(int64_t iteration) const {
  for (const Operation& operation : operations_) {
    const absl::Status status = CheckOne(operation, iteration);
    if (status.ok()) continue;
    return Annotate(status, absl::StrCat("wrong result on rank ", rank_.value(),
                                         ": ", DescribeOperation(operation)));
  }
  return absl::OkStatus();
}

absl::Status Operands::CheckOne(const Operation& operation,
                                int64_t iteration) const {
  const Buffer output = operation.output;
  if (output.count == 0) return absl::OkStatus();
  const int64_t count = shape_.count;
  const int64_t own = rank_.value() * count;
  switch (shape_.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return pattern_.CheckReduced(output, 0, iteration);
    case OpKind::kReduceScatter:
      return pattern_.CheckReduced(output, own, iteration);
    case OpKind::kBroadcast:
      return pattern_.CheckCopied(output, kRoot, 0, iteration);
    case OpKind::kScatter:
      return pattern_.CheckCopied(output, kRoot, own, iteration);
    default:
      break;
  }
  const int64_t first = shape_.kind == OpKind::kAllToAll ? own : 0;
  for (int64_t r = 0; r < world_; ++r) {
    TESSERA_RETURN_IF_ERROR(pattern_.CheckCopied(output.Slice(r * count, count),
                                                 Rank(r), first, iteration),
                            Annotate(_, absl::StrCat("block of rank ", r)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
