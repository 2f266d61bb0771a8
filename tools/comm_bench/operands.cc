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

// Whole numbers up to this are exact.
double LargestExact(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p53;
    case DType::kF32:
      return 0x1p24;
    case DType::kF16:
      return 0x1p11;
    case DType::kBF16:
      return 0x1p8;
    case DType::kF8E4M3:
      return 0x1p4;
    case DType::kF8E5M2:
      return 0x1p3;
    case DType::kI8:
      return 127;
    case DType::kU8:
      return 255;
    default:
      return 0x1p31 - 1;
  }
}

// One period, in which one number in `sparseness` is not the neutral element.
// The numbers of an average are multiples of the world size, and those of a
// scaled sum of 1/scale, so that no rounding occurs.
std::vector<double> MakePeriod(DType dtype, const Reduction& reduction,
                               int64_t world, uint64_t sparseness) {
  const auto ranks = static_cast<double>(world);
  const bool product = reduction.op == ReduceOp::kProduct;
  const bool selects =
      reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax;
  const double step = reduction.op == ReduceOp::kAverage
                          ? ranks
                          : std::max(1.0, 1 / reduction.scale);
  const double room = selects ? 1 : ranks * step * reduction.scale;
  const auto largest = static_cast<uint64_t>(
      std::clamp(LargestExact(dtype) / std::max(1.0, room), 1.0, 100.0));
  std::vector<double> period(kPeriod);
  for (size_t i = 0; i < period.size(); ++i) {
    const uint64_t random = Mix(i);
    const double other =
        product ? 2 : step * static_cast<double>(1 + random % largest);
    period[i] = Mix(random) % sparseness == 0 ? other : product;
  }
  return period;
}

double CombineValues(ReduceOp op, double a, double b) {
  const auto x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kBitAnd:
      return static_cast<double>(x & y);
    case ReduceOp::kBitOr:
      return static_cast<double>(x | y);
    case ReduceOp::kBitXor:
      return static_cast<double>(x ^ y);
    default:
      return a + b;
  }
}

// The reduction of all ranks' periods, before the division of an average.
std::vector<double> Reduce(const std::vector<double>& period,
                           const Reduction& reduction, int64_t world) {
  std::vector<double> reduced(kPeriod);
  for (int64_t i = 0; i < kPeriod; ++i) {
    double& value = reduced[static_cast<size_t>(i)];
    for (int64_t r = 0; r < world; ++r) {
      const double next =
          reduction.scale * period[static_cast<size_t>(PhaseOf(r, i, 0))];
      value = r == 0 ? next : CombineValues(reduction.op, value, next);
    }
  }
  return reduced;
}

bool IsExact(const std::vector<double>& reduced, DType dtype, ReduceOp op) {
  const double limit = op == ReduceOp::kProduct && IsFloating(dtype)
                           ? 0x1p15  // Powers of two.
                           : LargestExact(dtype);
  return *std::max_element(reduced.begin(), reduced.end()) <= limit;
}

// The period twice.
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
  const bool averages = reduction.op == ReduceOp::kAverage;
  for (uint64_t sparseness = 1; sparseness <= kSparsest; sparseness *= 2) {
    const std::vector<double> period =
        MakePeriod(dtype, reduction, world, sparseness);
    std::vector<double> reduced = Reduce(period, reduction, world);
    if (!IsExact(reduced, dtype, reduction.op)) continue;
    if (averages) {
      for (double& value : reduced) value /= static_cast<double>(world);
    }
    Pattern pattern;
    pattern.dtype_ = dtype;
    // The last bit.
    if (averages && IsFloating(dtype)) {
      pattern.tolerance_ = 2 / LargestExact(dtype);
    }
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
      const double want = Decode(dtype_, expected + i * size);
      const double have = Decode(dtype_, got + i * size);
      if (std::abs(have - want) <= tolerance_ * want) continue;
      return absl::InternalError(absl::StrCat("element ", done + i, " is ",
                                              have, ", expected ", want));
    }
  }
  return absl::OkStatus();
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
int64_t RoundUp(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// True if the input, or the output, consists of a block for each rank.
bool HasInputBlocks(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kScatter ||
         kind == OpKind::kAllToAll;
}
bool HasOutputBlocks(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather ||
         kind == OpKind::kAllToAll;
}
int64_t BlocksOf(OpKind kind, int64_t world) {
  return HasInputBlocks(kind) || HasOutputBlocks(kind) ? world : 1;
}

// An operation whose buffers have no memory yet, their offsets in it, and the
// bytes that both need.
struct Layout {
  Operation operation;
  int64_t input_at = 0;
  int64_t output_at = 0;
  int64_t bytes = 0;
};

Layout LayOut(const OperandShape& shape, Rank rank, int64_t world) {
  Layout layout;
  Operation& operation = layout.operation;
  operation.kind = shape.kind;
  operation.reduction = shape.reduction;
  operation.root = kRoot;
  const collectives::Sides sides = SidesOf(operation, rank);
  const bool in_blocks = HasInputBlocks(shape.kind);
  const bool out_blocks = HasOutputBlocks(shape.kind);
  const auto count = [&](bool is_used, bool is_blocks) {
    return is_used ? shape.count * (is_blocks ? world : 1) : 0;
  };
  operation.input = {nullptr, count(sides.input, in_blocks), shape.dtype};
  operation.output = {nullptr, count(sides.output, out_blocks), shape.dtype};
  const int64_t in = RoundUp(operation.input.bytes());
  const int64_t out = RoundUp(operation.output.bytes());
  layout.bytes = shape.in_place ? std::max(in, out) : in + out;
  if (!shape.in_place) {
    layout.output_at = in;
  } else if (sides.input && sides.output && in_blocks != out_blocks) {
    // The smaller buffer is the rank's own block of the larger one.
    (in_blocks ? layout.output_at : layout.input_at) =
        rank.value() * shape.count * SizeInBytes(shape.dtype);
  }
  return layout;
}

}  // namespace

int64_t CountFor(OpKind kind, DType dtype, int64_t bytes, int64_t world) {
  if (kind == OpKind::kBarrier) return 0;
  return std::max<int64_t>(1,
                           bytes / SizeInBytes(dtype) / BlocksOf(kind, world));
}

int64_t MessageBytes(const OperandShape& shape, int64_t world) {
  return shape.count * SizeInBytes(shape.dtype) * BlocksOf(shape.kind, world);
}

absl::StatusOr<Operands> Operands::Allocate(Communicator& communicator,
                                            const OperandShape& shape,
                                            Queue* queue) {
  // Only reductions need exact sums.
  const Reduction reduction =
      Reduces(shape.kind) ? shape.reduction : Reduction::Max();
  TESSERA_ASSIGN_OR_RETURN(
      Pattern pattern,
      Pattern::Create(shape.dtype, reduction, communicator.size()));
  Operands operands(shape, communicator.rank(), communicator.size(),
                    std::move(pattern), queue);
  const Layout layout = LayOut(shape, communicator.rank(), communicator.size());
  TESSERA_RETURN_IF_ERROR(
      operands.AllocateMemory(communicator, shape.slots * layout.bytes));
  for (int64_t slot = 0; slot < shape.slots; ++slot) {
    std::byte* const base = operands.memory_ + slot * layout.bytes;
    Operation& operation = operands.operations_.emplace_back(layout.operation);
    operation.input.data = base + layout.input_at;
    operation.output.data = base + layout.output_at;
  }
  return operands;
}

absl::Status Operands::AllocateMemory(Communicator& communicator,
                                      int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const auto size = static_cast<size_t>(bytes);
  if (queue_ == nullptr && shape_.registered) {
    TESSERA_ASSIGN_OR_RETURN(shared_, communicator.AllocateShared(bytes));
    memory_ = shared_->bytes().data();
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(
      own_, tessera::Buffer::Allocate(
                queue_ == nullptr ? HostMemory() : queue_->device().memory(),
                size, kPage));
  memory_ = own_.data();
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
    data = const_cast<std::byte*>(image_.data()) + (data - memory_);
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
  TESSERA_RETURN_IF_ERROR(
      queue_->Copy(std::as_const(image_).bytes(), own_.bytes()));
  return queue_->Synchronize();
}

absl::Status Operands::Check(int64_t iteration) {
  if (queue_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        queue_->Copy(std::as_const(own_).bytes(), image_.bytes()));
    TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
  }
  for (const Operation& operation : operations_) {
    TESSERA_RETURN_IF_ERROR(
        CheckOne(operation, iteration),
        Annotate(_, absl::StrCat("wrong result on rank ", rank_.value(), ": ",
                                 DescribeOperation(operation))));
  }
  return absl::OkStatus();
}

absl::Status Operands::CheckOne(const Operation& operation,
                                int64_t iteration) const {
  const Buffer output = OnHost(operation.output);
  if (output.count == 0) return absl::OkStatus();
  const int64_t count = shape_.count;
  // The first element of this rank's part of each message.
  const int64_t first = HasInputBlocks(shape_.kind) ? rank_.value() * count : 0;
  if (Reduces(shape_.kind)) {
    return pattern_.CheckReduced(output, first, iteration);
  }
  if (!HasOutputBlocks(shape_.kind)) {
    return pattern_.CheckCopied(output, kRoot, first, iteration);
  }
  for (int64_t r = 0; r < world_; ++r) {
    TESSERA_RETURN_IF_ERROR(pattern_.CheckCopied(output.Slice(r * count, count),
                                                 Rank(r), first, iteration),
                            Annotate(_, absl::StrCat("block of rank ", r)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tools
