#include "collectives/testing/conformance_case.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace tessera::collectives {
namespace {

// Memory for `count` elements with guards on both sides, aligned only to
// elements.
class GuardedMemory {
 public:
  static absl::StatusOr<GuardedMemory> Create(Communicator& communicator,
                                              bool shared, int64_t count,
                                              DType dtype) {
    GuardedMemory memory;
    memory.size_ = SizeInBytes(dtype);
    memory.bytes_ = count * memory.size_;
    const int64_t all = memory.bytes_ + 2 * kGuard;
    std::byte* start = nullptr;
    if (shared) {
      TESSERA_ASSIGN_OR_RETURN(memory.shared_,
                               communicator.AllocateShared(all));
      start = memory.shared_->bytes().data();
    } else {
      memory.own_ = std::make_unique<std::byte[]>(static_cast<size_t>(all));
      start = memory.own_.get();
    }
    memory.start_ = start;
    std::memset(start, kGuardByte, static_cast<size_t>(all));
    memory.buffer_ = Buffer(start + memory.Offset(), count, dtype);
    return memory;
  }

  Buffer buffer() const { return buffer_; }

  bool Intact() const {
    const auto guarded = [&](int64_t from, int64_t to) {
      return std::all_of(start_ + from, start_ + to, [](std::byte b) {
        return b == static_cast<std::byte>(kGuardByte);
      });
    };
    return guarded(0, Offset()) &&
           guarded(Offset() + bytes_, bytes_ + 2 * kGuard);
  }

 private:
  static constexpr int64_t kGuard = 128;
  static constexpr int kGuardByte = 0x5a;

  // One element past the guard: aligned to elements but not to vectors.
  int64_t Offset() const { return kGuard - 3 * size_; }

  std::unique_ptr<std::byte[]> own_;
  std::unique_ptr<SharedMemory> shared_;
  std::byte* start_ = nullptr;
  int64_t size_ = 1;
  int64_t bytes_ = 0;
  Buffer buffer_;
};

inline uint64_t Hash(uint64_t x) {
  x *= 0x9e3779b97f4a7c15ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ x >> 32;
}

// Element `index` of the input of `rank`.
inline int64_t ValueOf(const ConformanceCase& test_case, int64_t rank,
                       int64_t index) {
  const uint64_t hash =
      Hash(test_case.seed ^ static_cast<uint64_t>(rank) << 48 ^
           static_cast<uint64_t>(index));
  const bool is_signed = test_case.dtype != DType::kU8;
  if (Reduces(test_case.kind) && test_case.reduction.op == ReduceOp::kProduct) {
    constexpr int64_t kFactors[] = {1, 2, 1, -1};
    return kFactors[hash % (is_signed ? 4 : 3)];
  }
  return static_cast<int64_t>(hash % 9) - (is_signed ? 4 : 0);
}

// The reduction of all ranks' elements `index`.
template <typename T>
T ReducedValue(const ConformanceCase& test_case, int64_t ranks, int64_t index) {
  int64_t result = ValueOf(test_case, 0, index);
  for (int64_t r = 1; r < ranks; ++r) {
    const int64_t value = ValueOf(test_case, r, index);
    switch (test_case.reduction.op) {
      case ReduceOp::kProduct:
        result *= value;
        break;
      case ReduceOp::kMin:
        result = std::min(result, value);
        break;
      case ReduceOp::kMax:
        result = std::max(result, value);
        break;
      case ReduceOp::kBitAnd:
        result &= value;
        break;
      case ReduceOp::kBitOr:
        result |= value;
        break;
      case ReduceOp::kBitXor:
        result ^= value;
        break;
      default:
        result += value;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    if (test_case.reduction.op == ReduceOp::kAverage) result /= ranks;
    if (test_case.reduction.op == ReduceOp::kScaledSum) {
      result *= static_cast<int64_t>(test_case.reduction.scale);
    }
    return static_cast<T>(result);
  } else {
    using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
    Wide wide = static_cast<Wide>(result);
    if (test_case.reduction.op == ReduceOp::kAverage) {
      wide /= static_cast<Wide>(ranks);
    }
    if (test_case.reduction.op == ReduceOp::kScaledSum) {
      wide *= static_cast<Wide>(test_case.reduction.scale);
    }
    return T(wide);
  }
}

template <typename T>
T Element(int64_t value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

// Distance between the values of a rank's blocks for consecutive peers.
constexpr int64_t kPeerStride = 1'000'003;

int64_t UnevenCount(const ConformanceCase& test_case, int64_t from,
                    int64_t to) {
  const uint64_t hash =
      Hash(test_case.seed * 31 + static_cast<uint64_t>(from * 1000 + to));
  if (hash % 3 == 0) return 0;
  return static_cast<int64_t>(hash / 3 %
                              static_cast<uint64_t>(2 * test_case.count + 1));
}

// One rank's view of the case.
struct RankCase {
  Operation operation;
  GuardedMemory input;
  GuardedMemory output;
  bool has_input = true;
  bool has_output = true;
};

struct Shape {
  int64_t input = 0;
  int64_t output = 0;
  std::vector<int64_t> counts = {};
  std::vector<int64_t> receive_counts = {};
};

Shape ShapeOf(const ConformanceCase& test_case, int64_t rank, int64_t ranks) {
  const int64_t count = test_case.count;
  const auto self = static_cast<size_t>(rank);
  Shape shape{count, count};
  if (test_case.uneven) {
    const bool all_to_all = test_case.kind == OpKind::kAllToAll;
    for (int64_t r = 0; r < ranks; ++r) {
      shape.counts.push_back(UnevenCount(test_case, all_to_all ? rank : 0, r));
      if (all_to_all) {
        shape.receive_counts.push_back(UnevenCount(test_case, r, rank));
      }
    }
  }
  const int64_t total =
      test_case.uneven ? Blocks::Of(shape.counts).total() : ranks * count;
  const int64_t own = test_case.uneven ? shape.counts[self] : count;
  switch (test_case.kind) {
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      return {total, own, shape.counts};
    case OpKind::kAllGather:
    case OpKind::kGather:
      return {own, total, shape.counts};
    case OpKind::kAllToAll:
      shape.input = total;
      shape.output =
          test_case.uneven ? Blocks::Of(shape.receive_counts).total() : total;
      return shape;
    case OpKind::kBarrier:
      return {0, 0};
    default:
      return shape;
  }
}

template <typename T>
void FillInput(const ConformanceCase& test_case, int64_t rank, int64_t ranks,
               const Shape& shape, Buffer input) {
  T* const elements = static_cast<T*>(input.data);
  if (test_case.kind != OpKind::kAllToAll) {
    for (int64_t i = 0; i < input.count; ++i) {
      elements[i] = Element<T>(ValueOf(test_case, rank, i));
    }
    return;
  }
  const Blocks blocks = test_case.uneven ? Blocks::Of(shape.counts)
                                         : Blocks::Even(ranks, test_case.count);
  for (int64_t to = 0; to < ranks; ++to) {
    for (int64_t j = 0; j < blocks.count(to); ++j) {
      elements[blocks.offset(to) + j] =
          Element<T>(ValueOf(test_case, rank, to * kPeerStride + j));
    }
  }
}

// Element `i` of this rank's output.
template <typename T>
T Expected(const ConformanceCase& test_case, int64_t rank, int64_t ranks,
           const Blocks& blocks, int64_t block, int64_t j) {
  switch (test_case.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return ReducedValue<T>(test_case, ranks, j);
    case OpKind::kReduceScatter:
      return ReducedValue<T>(test_case, ranks, blocks.offset(rank) + j);
    case OpKind::kBroadcast:
      return Element<T>(ValueOf(test_case, test_case.root.value(), j));
    case OpKind::kScatter:
      return Element<T>(
          ValueOf(test_case, test_case.root.value(), blocks.offset(rank) + j));
    case OpKind::kAllToAll:
      return Element<T>(ValueOf(test_case, block, rank * kPeerStride + j));
    default:
      return Element<T>(ValueOf(test_case, block, j));
  }
}

template <typename T>
absl::Status CheckOutput(const ConformanceCase& test_case, int64_t rank,
                         int64_t ranks, const Operation& operation,
                         ConstBuffer output) {
  const T* const elements = static_cast<const T*>(output.data);
  const bool gathers = test_case.kind == OpKind::kAllGather ||
                       test_case.kind == OpKind::kGather ||
                       test_case.kind == OpKind::kAllToAll;
  const bool scatters = test_case.kind == OpKind::kReduceScatter ||
                        test_case.kind == OpKind::kScatter;
  const Blocks blocks = gathers    ? OutputBlocks(operation, ranks)
                        : scatters ? InputBlocks(operation, ranks)
                                   : Blocks::Even(1, output.count);
  const Blocks parts = scatters ? Blocks::Even(1, output.count) : blocks;
  for (int64_t block = 0; block < parts.ranks(); ++block) {
    for (int64_t j = 0; j < parts.count(block); ++j) {
      const int64_t at = parts.offset(block) + j;
      const T expected = Expected<T>(test_case, rank, ranks, blocks, block, j);
      if (std::memcmp(&elements[at], &expected, sizeof(T)) == 0) continue;
      if (elements[at] == expected) continue;  // 0 and -0.
      return absl::InternalError(absl::StrCat(
          "element ", at, " is ", static_cast<double>(elements[at]),
          ", should be ", static_cast<double>(expected)));
    }
  }
  return absl::OkStatus();
}

// Creates the buffers, in place or separate, and the operation on them.
absl::StatusOr<RankCase> TakeSeat(Communicator& communicator,
                                  const ConformanceCase& test_case,
                                  const Shape& shape) {
  const int64_t rank = communicator.rank().value();
  const bool root = communicator.rank() == test_case.root;
  const bool shared = test_case.memory == CaseMemory::kShared ||
                      (test_case.memory == CaseMemory::kMixed && rank % 2 == 0);
  RankCase part;
  part.has_input = (test_case.kind != OpKind::kBroadcast &&
                    test_case.kind != OpKind::kScatter) ||
                   root;
  part.has_output = (test_case.kind != OpKind::kReduce &&
                     test_case.kind != OpKind::kGather) ||
                    root;
  TESSERA_ASSIGN_OR_RETURN(
      part.input, GuardedMemory::Create(communicator, shared, shape.input,
                                        test_case.dtype));
  TESSERA_ASSIGN_OR_RETURN(
      part.output, GuardedMemory::Create(communicator, shared, shape.output,
                                         test_case.dtype));
  Operation& operation = part.operation;
  operation.kind = test_case.kind;
  operation.reduction = test_case.reduction;
  operation.root = test_case.root;
  operation.counts = shape.counts;
  operation.receive_counts = shape.receive_counts;
  if (part.has_input) operation.input = part.input.buffer();
  if (part.has_output) operation.output = part.output.buffer();
  if (!test_case.in_place || !part.has_input || !part.has_output) return part;
  const int64_t ranks = communicator.size();
  if (shape.input > shape.output ||
      (shape.input == shape.output && test_case.kind != OpKind::kAllGather &&
       test_case.kind != OpKind::kGather)) {
    const bool divided = test_case.kind == OpKind::kReduceScatter ||
                         test_case.kind == OpKind::kScatter;
    const int64_t offset =
        divided ? InputBlocks(operation, ranks).offset(rank) : 0;
    operation.output = part.input.buffer().Slice(offset, shape.output);
  } else {
    const bool divided = test_case.kind == OpKind::kAllGather ||
                         test_case.kind == OpKind::kGather;
    const int64_t offset =
        divided ? OutputBlocks(operation, ranks).offset(rank) : 0;
    operation.input = part.output.buffer().Slice(offset, shape.input);
  }
  return part;
}

absl::Status Carry(Communicator& communicator, const Operation& operation,
                   const ConformanceCase& test_case) {
  CallOptions call;
  call.algorithm = test_case.algorithm;
  if (!test_case.started) return communicator.Run(operation, call);
  TESSERA_ASSIGN_OR_RETURN(const Work work,
                           communicator.Start(operation, call));
  return work.Wait();
}

absl::StatusOr<std::optional<PreparedOperation>> PrepareIfAsked(
    Communicator& communicator, const Operation& operation,
    const ConformanceCase& test_case) {
  if (test_case.prepared == 0) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(
      PreparedOperation prepared,
      communicator.Prepare(operation, {.algorithm = test_case.algorithm}));
  return prepared;
}

// Fills the input, runs the operation and checks the output.
template <typename T>
absl::Status RunOnce(Communicator& communicator,
                     const ConformanceCase& test_case, const Shape& shape,
                     const RankCase& part, PreparedOperation* prepared) {
  const int64_t rank = communicator.rank().value();
  const int64_t ranks = communicator.size();
  const Operation& operation = part.operation;
  std::vector<std::byte> before;
  if (part.has_input) {
    const Buffer input(const_cast<void*>(operation.input.data),
                       operation.input.count, operation.input.dtype);
    FillInput<T>(test_case, rank, ranks, shape, input);
    before.assign(input.AsBytes().begin(), input.AsBytes().end());
  }
  const absl::Status status = prepared != nullptr
                                  ? prepared->Run()
                                  : Carry(communicator, operation, test_case);
  if (absl::IsUnimplemented(status) && communicator.engine_name() == "nccl" &&
      IsBitwise(operation.reduction.op)) {
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(status);
  if (part.has_output) {
    TESSERA_RETURN_IF_ERROR(
        CheckOutput<T>(test_case, rank, ranks, operation, operation.output));
  }
  if (!part.input.Intact() || !part.output.Intact()) {
    return absl::InternalError("memory around a buffer was written");
  }
  const bool apart = !test_case.in_place || !part.has_output;
  if (part.has_input && apart && !before.empty() &&
      std::memcmp(before.data(), operation.input.data, before.size()) != 0) {
    return absl::InternalError("the input was changed");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status RunTypedCase(Communicator& communicator,
                          const ConformanceCase& test_case) {
  const int64_t rank = communicator.rank().value();
  const int64_t ranks = communicator.size();
  const Shape shape = ShapeOf(test_case, rank, ranks);
  TESSERA_ASSIGN_OR_RETURN(RankCase part,
                           TakeSeat(communicator, test_case, shape));
  TESSERA_ASSIGN_OR_RETURN(
      std::optional<PreparedOperation> prepared,
      PrepareIfAsked(communicator, part.operation, test_case));
  for (int64_t run = 0; run < std::max<int64_t>(1, test_case.prepared); ++run) {
    ConformanceCase own = test_case;
    own.seed += static_cast<uint64_t>(run);
    TESSERA_RETURN_IF_ERROR(RunOnce<T>(communicator, own, shape, part,
                                       prepared ? &*prepared : nullptr));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Describe(const ConformanceCase& c) {
  std::string text = absl::StrCat(
      OpKindName(c.kind), " of ", c.count, " ", DTypeName(c.dtype),
      c.uneven ? " uneven" : "", c.in_place ? " in place" : "",
      c.started ? " started" : "", c.prepared > 0 ? " prepared" : "");
  if (Reduces(c.kind)) {
    absl::StrAppend(&text, " ", ReduceOpName(c.reduction.op));
  }
  if (HasRoot(c.kind)) absl::StrAppend(&text, " root ", c.root.value());
  if (c.memory != CaseMemory::kOrdinary) {
    absl::StrAppend(&text,
                    c.memory == CaseMemory::kShared ? " shared" : " mixed");
  }
  if (c.algorithm) absl::StrAppend(&text, " by ", AlgorithmName(*c.algorithm));
  return absl::StrCat(text, " seed ", c.seed);
}

absl::Status RunCase(Communicator& communicator,
                     const ConformanceCase& test_case) {
  const absl::Status status = DispatchDType(
      test_case.dtype, [&]<typename T>(std::type_identity<T>) -> absl::Status {
        if constexpr (std::is_same_v<T, F8E4M3> || std::is_same_v<T, F8E5M2>) {
          return absl::InternalError("no reducible type");
        } else {
          return RunTypedCase<T>(communicator, test_case);
        }
      });
  return Annotate(status, absl::StrCat("rank ", communicator.rank().value(),
                                       ", ", Describe(test_case)));
}

ConformanceCase RandomCase(std::mt19937_64& random, int64_t ranks,
                           int64_t largest) {
  constexpr DType kTypes[] = {DType::kF64,  DType::kF32, DType::kF16,
                              DType::kBF16, DType::kI64, DType::kI32,
                              DType::kI8,   DType::kU8};
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  ConformanceCase c;
  c.kind = kCollectiveKinds[static_cast<size_t>(below(9))];
  c.dtype = kTypes[below(8)];
  do {
    c.reduction.op = kAllReduceOps[random() % kAllReduceOps.size()];
  } while (!IsReducible(c.dtype, c.reduction.op));
  if (c.reduction.op == ReduceOp::kScaledSum) {
    c.reduction.scale = IsInteger(c.dtype) ? 3 : 0.5;
  }
  // Small counts are as frequent as large ones.
  const int64_t bound = int64_t{1} << below(20);
  c.count = below(std::min(bound, largest) + 1);
  const bool divided = c.kind == OpKind::kReduceScatter ||
                       c.kind == OpKind::kAllGather ||
                       c.kind == OpKind::kAllToAll;
  c.uneven = divided && below(2) == 0;
  c.root = Rank(below(ranks));
  c.in_place = below(3) == 0 && !(c.uneven && c.kind == OpKind::kAllToAll);
  c.started = below(4) == 0;
  c.memory = static_cast<CaseMemory>(below(3));
  if (!c.started && below(3) == 0) c.prepared = 1 + below(3);
  c.seed = random();
  return c;
}

}  // namespace tessera::collectives
