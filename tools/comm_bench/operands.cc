#include "tools/comm_bench/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"

namespace tessera::tools {

namespace {

using collectives::Buffer;
using collectives::ConstBuffer;
using collectives::ReduceOp;
using collectives::Reduction;
using topology::Rank;

constexpr int64_t kPeriod = 1021;  // A prime: no block size divides it.
constexpr int64_t kRankStep = 331;
constexpr int64_t kIterationStep = 29;

int64_t PhaseOf(int64_t rank, int64_t first, int64_t iteration) {
  return (rank * kRankStep + iteration * kIterationStep + first) % kPeriod;
}

// Whole numbers up to this are exact.
double LargestExact(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 2048;
    case DType::kBF16:
      return 256;
    case DType::kF8E4M3:
      return 16;
    case DType::kF8E5M2:
      return 8;
    case DType::kI8:
      return 127;
    case DType::kU8:
      return 255;
    default:
      return 1 << 20;
  }
}

// The last bit of a number of this type, relative to it.
double LastBit(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::ldexp(1, -52);
    case DType::kF32:
      return std::ldexp(1, -23);
    case DType::kF16:
      return std::ldexp(1, -10);
    case DType::kBF16:
      return std::ldexp(1, -7);
    default:
      return 0;
  }
}

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// All numbers are multiples of this step, so that divisions are exact.
double StepOf(const Reduction& reduction, int64_t world) {
  if (reduction.op == ReduceOp::kAverage) return static_cast<double>(world);
  if (reduction.op != ReduceOp::kScaledSum) return 1;
  return reduction.scale == 0 ? 1
                              : std::max(1.0, 1 / std::abs(reduction.scale));
}

// One period, in which one number in `sparseness` is not the neutral element.
std::vector<double> MakePeriod(DType dtype, const Reduction& reduction,
                               int64_t world, uint64_t sparseness) {
  const bool product = reduction.op == ReduceOp::kProduct;
  const double step = StepOf(reduction, world);
  const double room = LargestExact(dtype) / static_cast<double>(world) / step /
                      std::max(1.0, std::abs(reduction.scale));
  const bool reduces_to_one =
      reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax;
  const double top = reduces_to_one ? LargestExact(dtype) : room;
  const auto largest = static_cast<uint64_t>(std::clamp(top, 1.0, 100.0));
  std::vector<double> period(kPeriod);
  for (size_t i = 0; i < period.size(); ++i) {
    const uint64_t random = Mix(i);
    const bool neutral = Mix(random) % sparseness != 0;
    if (product) {
      period[i] = neutral ? 1 : 2;
    } else {
      period[i] =
          neutral ? 0 : step * static_cast<double>(1 + random % largest);
    }
  }
  return period;
}

double Combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBitAnd:
      return static_cast<double>(static_cast<int64_t>(a) &
                                 static_cast<int64_t>(b));
    case ReduceOp::kBitOr:
      return static_cast<double>(static_cast<int64_t>(a) |
                                 static_cast<int64_t>(b));
    case ReduceOp::kBitXor:
      return static_cast<double>(static_cast<int64_t>(a) ^
                                 static_cast<int64_t>(b));
    default:
      return a + b;
  }
}

std::vector<double> Reduce(const std::vector<double>& period,
                           const Reduction& reduction, int64_t world) {
  const double scale =
      reduction.op == ReduceOp::kScaledSum ? reduction.scale : 1.0;
  std::vector<double> reduced(kPeriod);
  for (int64_t i = 0; i < kPeriod; ++i) {
    double value = scale * period[static_cast<size_t>(i)];
    for (int64_t r = 1; r < world; ++r) {
      const auto at = static_cast<size_t>(PhaseOf(r, i, 0));
      value = Combine(reduction.op, value, scale * period[at]);
    }
    if (reduction.op == ReduceOp::kAverage) value /= static_cast<double>(world);
    reduced[static_cast<size_t>(i)] = value;
  }
  return reduced;
}

// True if every partial result is exact too: for an average, the sum.
bool IsExact(const std::vector<double>& reduced, DType dtype,
             const Reduction& reduction, int64_t world) {
  const double parts =
      reduction.op == ReduceOp::kAverage ? static_cast<double>(world) : 1.0;
  const double limit = reduction.op == ReduceOp::kProduct && IsFloating(dtype)
                           ? std::ldexp(1, 15)  // Powers of two.
                           : LargestExact(dtype);
  return std::all_of(reduced.begin(), reduced.end(), [&](double value) {
    return std::abs(value) * parts <= limit;
  });
}

std::vector<std::byte> Encode(const std::vector<double>& period, DType dtype) {
  std::vector<std::byte> table(
      static_cast<size_t>(2 * kPeriod * SizeInBytes(dtype)));
  const std::span<std::byte> first(table.data(), table.size() / 2);
  // The sizes fit by construction.
  static_cast<void>(
      Convert(DType::kF64, std::as_bytes(std::span(period)), dtype, first));
  std::memcpy(table.data() + first.size(), first.data(), first.size());
  return table;
}

double Decode(DType dtype, const std::byte* element) {
  double value = 0;
  static_cast<void>(
      Convert(dtype, {element, static_cast<size_t>(SizeInBytes(dtype))},
              DType::kF64, std::as_writable_bytes(std::span(&value, 1))));
  return value;
}

}  // namespace

absl::StatusOr<Pattern> Pattern::Create(DType dtype, const Reduction& reduction,
                                        int64_t world) {
  constexpr uint64_t kSparsest = 256;
  for (uint64_t sparseness = 1; sparseness <= kSparsest; sparseness *= 2) {
    const std::vector<double> period =
        MakePeriod(dtype, reduction, world, sparseness);
    const std::vector<double> reduced = Reduce(period, reduction, world);
    if (!IsExact(reduced, dtype, reduction, world)) continue;
    Pattern pattern(dtype,
                    reduction.op == ReduceOp::kAverage ? LastBit(dtype) : 0.0);
    pattern.inputs_ = Encode(period, dtype);
    pattern.reduced_ = Encode(reduced, dtype);
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

absl::Status Pattern::Check(const std::vector<std::byte>& table, int64_t phase,
                            ConstBuffer result) const {
  const int64_t size = SizeInBytes(dtype_);
  const std::byte* expected = table.data() + phase * size;
  for (int64_t done = 0; done < result.count; done += kPeriod) {
    const int64_t count = std::min(kPeriod, result.count - done);
    const std::byte* got = result.Bytes() + done * size;
    if (std::memcmp(got, expected, static_cast<size_t>(count * size)) == 0) {
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      TESSERA_RETURN_IF_ERROR(
          CheckValue(expected + i * size, got + i * size, done + i));
    }
  }
  return absl::OkStatus();
}

absl::Status Pattern::CheckValue(const std::byte* expected,
                                 const std::byte* result, int64_t index) const {
  const double want = Decode(dtype_, expected);
  const double have = Decode(dtype_, result);
  if (std::abs(have - want) <= tolerance_ * std::abs(want)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("element ", index, " is ", have, ", expected ", want));
}

namespace {

using collectives::Communicator;
using collectives::Operation;
using collectives::OpKind;

constexpr int64_t kPage = 4096;
constexpr int64_t kLine = 64;
constexpr Rank kRoot = Rank(0);

// Buffers begin at cache lines, not at pages: page-aligned buffers of a batch
// would fall into the same sets of the first-level cache.
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

// The offsets, in elements, of input and output within the larger of both for
// an in-place operation.
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
                                            const OperandShape& shape,
                                            Queue* queue) {
  // Only reductions need exact sums.
  const collectives::Reduction reduction =
      Reduces(shape.kind) ? shape.reduction : collectives::Reduction::Max();
  TESSERA_ASSIGN_OR_RETURN(
      Pattern pattern,
      Pattern::Create(shape.dtype, reduction, communicator.size()));
  Operands operands(shape, communicator.rank(), communicator.size(),
                    std::move(pattern));
  TESSERA_RETURN_IF_ERROR(operands.AllocateMemory(communicator, queue));
  operands.MakeOperations();
  return operands;
}

std::byte* Operands::memory() const {
  if (device_.queue != nullptr) {
    return const_cast<std::byte*>(device_.memory.data());
  }
  return shared_ != nullptr ? shared_->bytes().data() : own_.get();
}

absl::Status Operands::AllocateOnDevice(Queue& queue, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  device_.queue = &queue;
  TESSERA_ASSIGN_OR_RETURN(
      device_.memory, tessera::Buffer::Allocate(queue.device().memory(), size));
  TESSERA_ASSIGN_OR_RETURN(
      device_.image,
      tessera::Buffer::Allocate(queue.device().staging_memory(), size));
  // Copies include the gaps between buffers.
  std::memset(device_.image.data(), 0, size);
  return absl::OkStatus();
}

absl::Status Operands::AllocateMemory(Communicator& communicator,
                                      Queue* queue) {
  const Sides sides =
      SidesOf(shape_.kind, shape_.count, world_, rank_ == kRoot);
  const int64_t element = SizeInBytes(shape_.dtype);
  const int64_t in = RoundUp(sides.input * element);
  const int64_t out = RoundUp(sides.output * element);
  const int64_t bytes =
      shape_.slots * (shape_.in_place ? std::max(in, out) : in + out);
  if (bytes == 0) return absl::OkStatus();
  if (queue != nullptr) return AllocateOnDevice(*queue, bytes);
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

Buffer Operands::OnHost(ConstBuffer buffer) const {
  // The memory is this object's own; operations only read their inputs.
  auto* data = static_cast<std::byte*>(const_cast<void*>(buffer.data));
  if (device_.queue != nullptr) {
    data = const_cast<std::byte*>(device_.image.data()) + (data - memory());
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
  if (device_.queue == nullptr) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      device_.queue->Copy(device_.image.bytes(), device_.memory.bytes()));
  return device_.queue->Synchronize();
}

absl::Status Operands::Check(int64_t iteration) const {
  if (device_.queue != nullptr) {
    const std::span<std::byte> image(
        const_cast<std::byte*>(device_.image.data()), device_.image.size());
    TESSERA_RETURN_IF_ERROR(
        device_.queue->Copy(std::as_const(device_.memory).bytes(), image));
    TESSERA_RETURN_IF_ERROR(device_.queue->Synchronize());
  }
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
  const Buffer output = OnHost(operation.output);
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
