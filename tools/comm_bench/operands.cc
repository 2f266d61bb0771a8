#include "tools/comm_bench/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "collectives/reduction/combine.h"

namespace tessera::tools {
namespace {

using collectives::Buffer;
using collectives::Combination;
using collectives::Communicator;
using collectives::ConstBuffer;
using collectives::Operation;
using collectives::OpKind;
using collectives::ReduceOp;
using collectives::Reduction;
using topology::Rank;

using Table = std::vector<std::byte>;  // Two periods.

constexpr int64_t kPeriod = 1021;  // A prime: no block size divides it.

int64_t PhaseOf(int64_t rank, int64_t first, int64_t iteration) {
  return (rank * 331 + iteration * 29 + first) % kPeriod;
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Two periods of whole numbers, smaller in every attempt, then sparser among
// the neutral element. The numbers of an average are multiples of the world
// size, and those of a scaled sum of 1/scale, so that no rounding occurs.
std::vector<double> MakePeriods(const Reduction& reduction, int64_t world,
                                int attempt) {
  const bool product = reduction.op == ReduceOp::kProduct;
  const double step = reduction.op == ReduceOp::kAverage
                          ? static_cast<double>(world)
                          : std::max(1.0, 1 / reduction.scale);
  const auto largest = static_cast<uint64_t>(std::max(1, 100 >> attempt));
  const uint64_t sparseness = uint64_t{1} << std::max(0, attempt - 6);
  std::vector<double> periods;
  for (uint64_t i = 0; i < 2 * kPeriod; ++i) {
    const uint64_t random = Mix(i % kPeriod);
    const double other =
        product ? 2 : step * static_cast<double>(1 + random % largest);
    periods.push_back(Mix(random) % sparseness == 0 ? other : product);
  }
  return periods;
}

// The sizes fit by construction.
Table Converted(DType from, std::span<const std::byte> elements, DType to) {
  const auto count = elements.size() / static_cast<size_t>(SizeInBytes(from));
  Table converted(count * static_cast<size_t>(SizeInBytes(to)));
  static_cast<void>(Convert(from, elements, to, converted));
  return converted;
}

Table Encoded(std::span<const double> values, DType dtype) {
  return Converted(DType::kF64, std::as_bytes(values), dtype);
}

std::vector<double> Decoded(DType dtype, std::span<const std::byte> elements) {
  const Table bytes = Converted(dtype, elements, DType::kF64);
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

bool IsRepresentable(DType dtype, double value) {
  return Decoded(dtype, Encoded({&value, 1}, dtype))[0] == value;
}

// The reduction of all ranks' sequences.
Table Reduce(const Combination& combination, const Table& inputs,
             int64_t world) {
  const int64_t size = SizeInBytes(combination.dtype);
  std::vector<const void*> sources;
  for (int64_t r = 0; r < world; ++r) {
    sources.push_back(inputs.data() + PhaseOf(r, 0, 0) * size);
  }
  Table reduced(inputs.size());
  void* const periods[] = {reduced.data(), reduced.data() + kPeriod * size};
  Combine(combination, sources, periods, kPeriod);
  return reduced;
}

// The distance from 1 to the next number of a floating-point type.
double LastBit(DType dtype) {
  double bit = 1;
  while (1 + bit / 2 > 1 && IsRepresentable(dtype, 1 + bit / 2)) bit /= 2;
  return bit;
}

}  // namespace

absl::StatusOr<Pattern> Pattern::Create(DType dtype, const Reduction& reduction,
                                        int64_t world) {
  constexpr int kAttempts = 15;
  const bool product = reduction.op == ReduceOp::kProduct;
  // The results are those of a wider type.
  const DType wide =
      collectives::IsBitwise(reduction.op) ? DType::kI64 : DType::kF64;
  const auto whole = Combination::Whole(reduction, wide, world);
  Combination sum = whole;
  sum.divisor = 1;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::vector<double> periods = MakePeriods(reduction, world, attempt);
    const Table inputs = Encoded(periods, wide);
    const double largest =
        std::max(std::ranges::max(periods),
                 std::ranges::max(Decoded(wide, Reduce(sum, inputs, world))));
    // No partial result is rounded: products are powers of two, and if two
    // consecutive numbers are representable, all smaller ones are.
    if (!IsRepresentable(dtype, largest) ||
        (!product && !IsRepresentable(dtype, largest - 1))) {
      continue;
    }
    Pattern pattern;
    pattern.dtype_ = dtype;
    pattern.inputs_ = Converted(wide, inputs, dtype);
    pattern.reduced_ = Converted(wide, Reduce(whole, inputs, world), dtype);
    if (reduction.op == ReduceOp::kAverage && IsFloating(dtype)) {
      pattern.tolerance_ = LastBit(dtype);
    }
    return pattern;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no ", ReduceOpName(reduction.op), " of ", DTypeName(dtype), " over ",
      world, " ranks is exact; use a wider type or fewer ranks"));
}

void Pattern::Fill(Buffer target, Rank rank, int64_t first,
                   int64_t iteration) const {
  const int64_t size = SizeInBytes(dtype_);
  const std::byte* source =
      inputs_.data() + PhaseOf(rank.value(), first, iteration) * size;
  for (int64_t done = 0; done < target.count; done += kPeriod) {
    const int64_t count = std::min(kPeriod, target.count - done);
    std::memcpy(target.Bytes() + done * size, source,
                static_cast<size_t>(count * size));
  }
}

absl::Status Pattern::CheckCopied(ConstBuffer result, Rank source,
                                  int64_t first, int64_t iteration) const {
  return Check(inputs_, PhaseOf(source.value(), first, iteration), result);
}

absl::Status Pattern::CheckReduced(ConstBuffer result, int64_t first,
                                   int64_t iteration) const {
  return Check(reduced_, PhaseOf(0, first, iteration), result);
}

absl::Status Pattern::Check(const Table& table, int64_t phase,
                            ConstBuffer result) const {
  const int64_t size = SizeInBytes(dtype_);
  const std::byte* expected = table.data() + phase * size;
  for (int64_t done = 0; done < result.count; done += kPeriod) {
    const int64_t count = std::min(kPeriod, result.count - done);
    const std::byte* got = result.Bytes() + done * size;
    const auto bytes = static_cast<size_t>(count * size);
    if (std::memcmp(got, expected, bytes) == 0) continue;
    const std::vector<double> wanted = Decoded(dtype_, {expected, bytes});
    const std::vector<double> values = Decoded(dtype_, {got, bytes});
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double want = wanted[i], have = values[i];
      if (std::abs(have - want) <= tolerance_ * want) continue;
      return absl::InternalError(
          absl::StrCat("element ", static_cast<size_t>(done) + i, " is ", have,
                       ", expected ", want));
    }
  }
  return absl::OkStatus();
}

namespace {

// Buffers begin at cache lines, not at pages: page-aligned buffers of a batch
// would fall into the same sets of the first-level cache.
int64_t RoundUp(int64_t bytes) {
  constexpr int64_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

// True if the input, or the output, consists of a block for each rank.
bool HasInputBlocks(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kScatter ||
         kind == OpKind::kAllToAll;
}
bool HasOutputBlocks(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather ||
         kind == OpKind::kAllToAll;
}

// The offsets and sizes of an operation's buffers in the memory of a slot.
struct Layout {
  int64_t input_at = 0;
  int64_t output_at = 0;
  int64_t bytes = 0;
};

Layout LayOut(const OperandShape& shape, Rank rank) {
  const int64_t in = shape.operation.input.bytes();
  const int64_t out = shape.operation.output.bytes();
  if (!shape.in_place) return {0, RoundUp(in), RoundUp(in) + RoundUp(out)};
  // The smaller buffer is the rank's own block of the larger one.
  return {.input_at = in < out ? rank.value() * in : 0,
          .output_at = out < in ? rank.value() * out : 0,
          .bytes = RoundUp(std::max(in, out))};
}

}  // namespace

Operation MakeOperation(OpKind kind, DType dtype, const Reduction& reduction,
                        int64_t bytes, Rank rank, int64_t world, Rank root) {
  Operation operation;
  operation.kind = kind;
  if (kind == OpKind::kBarrier) return operation;
  // Only reductions need exact sums.
  operation.reduction = Reduces(kind) ? reduction : Reduction::Max();
  operation.root = root;
  const bool in_blocks = HasInputBlocks(kind);
  const bool out_blocks = HasOutputBlocks(kind);
  const int64_t blocks = in_blocks || out_blocks ? world : 1;
  const int64_t count =
      std::max<int64_t>(bytes > 0, bytes / SizeInBytes(dtype) / blocks);
  const collectives::Sides sides = SidesOf(operation, rank);
  operation.input = {nullptr, sides.input ? count * (in_blocks ? world : 1) : 0,
                     dtype};
  operation.output = {
      nullptr, sides.output ? count * (out_blocks ? world : 1) : 0, dtype};
  return operation;
}

absl::StatusOr<Operands> Operands::Allocate(Communicator& communicator,
                                            const OperandShape& shape,
                                            Queue* queue) {
  const int64_t world = communicator.size();
  TESSERA_ASSIGN_OR_RETURN(Pattern pattern,
                           Pattern::Create(DTypeOf(shape.operation),
                                           shape.operation.reduction, world));
  Operands operands(communicator, std::move(pattern), queue);
  const Layout layout = LayOut(shape, communicator.rank());
  TESSERA_RETURN_IF_ERROR(operands.AllocateMemory(
      communicator, shape.registered, shape.slots * layout.bytes));
  for (int64_t slot = 0; slot < shape.slots; ++slot) {
    std::byte* const base = operands.memory_.data() + slot * layout.bytes;
    Operation& operation = operands.operations_.emplace_back(shape.operation);
    operation.input.data = base + layout.input_at;
    operation.output.data = base + layout.output_at;
  }
  return operands;
}

absl::Status Operands::AllocateMemory(Communicator& communicator,
                                      bool registered, int64_t bytes) {
  constexpr size_t kPage = 4096;
  const auto size = static_cast<size_t>(bytes);
  if (bytes == 0) return absl::OkStatus();
  if (queue_ == nullptr && !registered) {
    TESSERA_ASSIGN_OR_RETURN(
        own_, tessera::Buffer::Allocate(HostMemory(), size, kPage));
    memory_ = own_.bytes();
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(shared_, communicator.AllocateShared(bytes));
  memory_ = shared_->bytes();
  if (queue_ == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      image_,
      tessera::Buffer::Allocate(queue_->device().staging_memory(), size));
  // Copies include the gaps between buffers.
  std::memset(image_.data(), 0, size);
  return absl::OkStatus();
}

Buffer Operands::OnHost(ConstBuffer buffer) const {
  // The memory is this object's own; operations only read their inputs.
  auto* data = static_cast<std::byte*>(const_cast<void*>(buffer.data));
  if (queue_ != nullptr) {
    data = const_cast<std::byte*>(image_.data()) + (data - memory_.data());
  }
  return Buffer(data, buffer.count, buffer.dtype);
}

absl::Status Operands::Rewrite(int64_t iteration) {
  constexpr int kPoison = 0xa5;
  for (const Operation& operation : operations_) {
    const auto output = OnHost(operation.output).AsBytes();
    if (!output.empty()) std::memset(output.data(), kPoison, output.size());
    pattern_.Fill(OnHost(operation.input), rank_, 0, iteration);
  }
  if (queue_ == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(queue_->Copy(std::as_const(image_).bytes(), memory_));
  return queue_->Synchronize();
}

absl::Status Operands::Check(int64_t iteration) {
  if (queue_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(queue_->Copy(memory_, image_.bytes()));
    TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
  }
  for (const Operation& operation : operations_) {
    TESSERA_RETURN_IF_ERROR(
        CheckOne(operation, iteration),
        Annotate(_,
                 absl::StrCat("wrong result: ", DescribeOperation(operation))));
  }
  return absl::OkStatus();
}

absl::Status Operands::CheckOne(const Operation& operation,
                                int64_t iteration) const {
  const Buffer output = OnHost(operation.output);
  if (output.count == 0) return absl::OkStatus();
  const int64_t blocks = HasOutputBlocks(operation.kind) ? world_ : 1;
  const int64_t count = output.count / blocks;
  // The first element of this rank's part of each message.
  const int64_t first =
      HasInputBlocks(operation.kind) ? rank_.value() * count : 0;
  if (Reduces(operation.kind)) {
    return pattern_.CheckReduced(output, first, iteration);
  }
  if (blocks == 1) {
    return pattern_.CheckCopied(output, operation.root, first, iteration);
  }
  for (int64_t r = 0; r < world_; ++r) {
    TESSERA_RETURN_IF_ERROR(pattern_.CheckCopied(output.Slice(r * count, count),
                                                 Rank(r), first, iteration),
                            Annotate(_, absl::StrCat("block of rank ", r)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
