#include "collectives/algorithms/testing/algorithm_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/run_algorithm.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kGuard = 64;
constexpr std::byte kGuardByte{0xa5};
constexpr int64_t kPatienceNs = 30'000'000'000;

uint64_t Hash(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15ULL + b;
  x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ULL;
  return x ^ x >> 29;
}

// Inputs whose product stays in range in any order.
double ValueOf(const AlgorithmCase& c, uint64_t hash) {
  if (IsInteger(c.dtype)) {
    const auto value = static_cast<double>(hash % 100);
    return c.dtype == DType::kU8 ? value : value - 50;
  }
  if (c.reduction.op == ReduceOp::kProduct) {
    constexpr double kFactors[] = {1, -1, 0.75, 1.25, -1.5};
    return kFactors[hash % 5];
  }
  return static_cast<double>(static_cast<int64_t>(hash % 2001) - 1000) / 64.0;
}

// Memory with guards around it.
class Guarded {
 public:
  explicit Guarded(int64_t bytes)
      : memory_(static_cast<size_t>(bytes + 2 * kGuard), kGuardByte) {}
  std::byte* data() { return memory_.data() + kGuard; }
  bool IsWhole() const {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_guard) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), is_guard);
  }

 private:
  std::vector<std::byte> memory_;
};

}  // namespace

std::string Describe(const AlgorithmCase& c) {
  return absl::StrCat(
      AlgorithmName(c.algorithm), " ", OpKindName(c.kind), " of ", c.count, " ",
      DTypeName(c.dtype), Reduces(c.kind) ? " " : "",
      Reduces(c.kind) ? ReduceOpName(c.reduction.op) : "",
      c.uneven ? " uneven" : "", c.in_place ? " in place" : "",
      c.mixed ? " mixed" : "",
      HasRoot(c.kind) ? absl::StrCat(" root ", c.root.value()) : "",
      c.options.reproducible ? " reproducible" : "", " chunk ",
      c.options.chunk_bytes,
      c.options.hierarchy != nullptr
          ? absl::StrCat(" hierarchy of ", c.options.hierarchy->levels(),
                         " levels, groups of up to ",
                         c.options.hierarchy->LargestGroup())
          : "");
}

bool IsExact(const AlgorithmCase& c) {
  return !Reduces(c.kind) || c.options.reproducible || IsInteger(c.dtype) ||
         c.reduction.op == ReduceOp::kMin || c.reduction.op == ReduceOp::kMax;
}

PreparedCase::PreparedCase(const AlgorithmCase& test_case, int64_t ranks)
    : case_(test_case), ranks_(ranks) {
  FillInputs();
  if (Reduces(case_.kind)) {
    ExpectReduced();
  } else {
    ExpectMoved();
  }
}

// The size of the block that `from` sends to `to`.
int64_t PreparedCase::CountFor(int64_t from, int64_t to) const {
  if (!case_.uneven) return case_.count;
  const uint64_t row =
      case_.kind == OpKind::kAllToAll ? static_cast<uint64_t>(from) : 0;
  const uint64_t hash =
      Hash(case_.seed + row * 131, static_cast<uint64_t>(to) + 17);
  if (hash % 3 == 0) return 0;
  return static_cast<int64_t>((hash >> 8) %
                              static_cast<uint64_t>(case_.count + 1));
}

PreparedCase::Shape PreparedCase::ShapeOf(int64_t rank) const {
  Shape shape;
  const bool root = rank == case_.root.value();
  int64_t all = 0;
  for (int64_t r = 0; r < ranks_; ++r) {
    if (r == rank) shape.own_block = all;
    all += CountFor(rank, r);
  }
  const int64_t own = CountFor(rank, rank);
  switch (case_.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kBroadcast:
      shape.input = shape.output = case_.count;
      shape.own_block = 0;
      break;
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      shape.input = all;
      shape.output = own;
      break;
    case OpKind::kAllGather:
    case OpKind::kGather:
      shape.input = own;
      shape.output = all;
      break;
    case OpKind::kAllToAll:
      shape.input = all;
      for (int64_t r = 0; r < ranks_; ++r) shape.output += CountFor(r, rank);
      shape.own_block = 0;
      break;
    default:
      break;
  }
  shape.has_output =
      root || (case_.kind != OpKind::kReduce && case_.kind != OpKind::kGather);
  shape.has_input = root || (case_.kind != OpKind::kBroadcast &&
                             case_.kind != OpKind::kScatter);
  return shape;
}

void PreparedCase::FillInputs() {
  const int64_t element = SizeInBytes(case_.dtype);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const int64_t count = ShapeOf(rank).input;
    std::vector<std::byte> input(static_cast<size_t>(count * element));
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t hash = Hash(case_.seed * 977 + static_cast<uint64_t>(rank),
                                 static_cast<uint64_t>(i));
      StoreElement(case_.dtype, input.data(), i, ValueOf(case_, hash));
    }
    inputs_.push_back(std::move(input));
  }
}

void PreparedCase::ExpectMoved() {
  const int64_t element = SizeInBytes(case_.dtype);
  const auto root = static_cast<size_t>(case_.root.value());
  std::vector<std::byte> everything;
  for (const std::vector<std::byte>& input : inputs_) {
    everything.insert(everything.end(), input.begin(), input.end());
  }
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    std::vector<std::byte> output;
    if (case_.kind == OpKind::kBroadcast) output = inputs_[root];
    if (case_.kind == OpKind::kAllGather || case_.kind == OpKind::kGather) {
      output = everything;
    }
    const auto take = [&](size_t from, int64_t first, int64_t count) {
      const auto begin = inputs_[from].begin() + first * element;
      output.insert(output.end(), begin, begin + count * element);
    };
    if (case_.kind == OpKind::kScatter) {
      take(root, rank * case_.count, case_.count);
    }
    for (int64_t from = 0; case_.kind == OpKind::kAllToAll && from < ranks_;
         ++from) {
      int64_t first = 0;
      for (int64_t to = 0; to < rank; ++to) first += CountFor(from, to);
      take(static_cast<size_t>(from), first, CountFor(from, rank));
    }
    expected_.push_back(std::move(output));
  }
}

void PreparedCase::ExpectReduced() {
  const int64_t element = SizeInBytes(case_.dtype);
  const int64_t count = ShapeOf(0).input;
  std::vector<std::byte> whole(static_cast<size_t>(count * element));
  std::vector<const void*> sources;
  for (const std::vector<std::byte>& input : inputs_) {
    sources.push_back(input.data());
  }
  void* const destinations[] = {whole.data()};
  if (count > 0) {
    Combine(Combination::Whole(case_.reduction, case_.dtype, ranks_), sources,
            destinations, count);
  }
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    const Shape shape = ShapeOf(rank);
    const auto begin = whole.begin() + shape.own_block * element;
    expected_.emplace_back(begin, begin + shape.output * element);
  }
  if (IsExact(case_)) return;
  const bool product = case_.reduction.op == ReduceOp::kProduct;
  const double factor =
      case_.reduction.op == ReduceOp::kScaledSum ? case_.reduction.scale : 1;
  const double divisor = case_.reduction.op == ReduceOp::kAverage
                             ? static_cast<double>(ranks_)
                             : 1;
  for (int64_t i = 0; i < count; ++i) {
    double value = product ? 1 : 0;
    double magnitude = 0;
    for (const std::vector<std::byte>& input : inputs_) {
      const double x = LoadElement(case_.dtype, input.data(), i) * factor;
      value = product ? value * x : value + x;
      magnitude += std::abs(x);
    }
    if (product) magnitude = std::abs(value);
    values_.push_back(value / divisor);
    tolerances_.push_back(
        EpsilonOf(case_.dtype) *
        (static_cast<double>(ranks_ + 2) * magnitude / divisor + 1e-3));
  }
}

Operation PreparedCase::Make(int64_t rank, ConstBuffer input,
                             Buffer output) const {
  Operation operation;
  operation.kind = case_.kind;
  operation.input = input;
  operation.output = output;
  operation.reduction = case_.reduction;
  operation.root = case_.root;
  if (!case_.uneven) return operation;
  for (int64_t r = 0; r < ranks_; ++r) {
    operation.counts.push_back(CountFor(rank, r));
    if (case_.kind == OpKind::kAllToAll) {
      operation.receive_counts.push_back(CountFor(r, rank));
    }
  }
  return operation;
}

absl::Status PreparedCase::CheckNear(int64_t rank,
                                     const std::byte* output) const {
  const Shape shape = ShapeOf(rank);
  for (int64_t i = 0; i < shape.output; ++i) {
    const auto at = static_cast<size_t>(shape.own_block + i);
    const double got = LoadElement(case_.dtype, output, i);
    if (std::abs(got - values_[at]) <= tolerances_[at]) continue;
    return absl::InternalError(absl::StrCat("element ", i, " is ", got,
                                            ", should be ", values_[at],
                                            " to within ", tolerances_[at]));
  }
  return absl::OkStatus();
}

absl::Status PreparedCase::Check(int64_t rank, const std::byte* output) const {
  if (!IsExact(case_)) return CheckNear(rank, output);
  const std::vector<std::byte>& expected = expected_[static_cast<size_t>(rank)];
  if (expected.empty()) return absl::OkStatus();
  if (std::memcmp(output, expected.data(), expected.size()) == 0) {
    return absl::OkStatus();
  }
  const auto [got, should] =
      std::mismatch(output, output + expected.size(), expected.begin());
  const int64_t index = (got - output) / SizeInBytes(case_.dtype);
  return absl::InternalError(absl::StrCat(
      "element ", index, " is ", LoadElement(case_.dtype, output, index),
      ", should be ", LoadElement(case_.dtype, expected.data(), index)));
}

absl::Status PreparedCase::Run(ThreadWorld& world, Transport& transport,
                               uint64_t sequence, Scratch& scratch) const {
  const int64_t rank = transport.rank().value();
  const int64_t element = SizeInBytes(case_.dtype);
  const Shape shape = ShapeOf(rank);
  const std::vector<std::byte>& source = inputs_[static_cast<size_t>(rank)];
  const bool in_place = (case_.mixed ? rank % 2 == 0 : case_.in_place) &&
                        shape.has_input && shape.has_output;
  Guarded first(std::max(shape.input, in_place ? shape.output : 0) * element);
  Guarded second(in_place ? 0 : shape.output * element);
  std::byte* input = first.data();
  std::byte* output = in_place ? first.data() : second.data();
  if (in_place) {
    (shape.input < shape.output ? input : output) += shape.own_block * element;
  }
  std::vector<std::byte> own_output(
      static_cast<size_t>(shape.output * element));
  if (!source.empty()) std::memcpy(input, source.data(), source.size());
  const Operation operation = Make(
      rank,
      shape.has_input ? ConstBuffer(input, shape.input, case_.dtype)
                      : ConstBuffer(),
      shape.has_output ? Buffer(output, shape.output, case_.dtype) : Buffer());
  TESSERA_RETURN_IF_ERROR(ValidateOperation(operation, Rank(rank), ranks_));
  OperationContext context(
      SignatureOf(operation, ranks_, 1, sequence, case_.algorithm),
      MonotonicNanos() + kPatienceNs, scratch);
  TESSERA_RETURN_IF_ERROR(RunAlgorithm(case_.algorithm, operation, transport,
                                       case_.options, context));
  scratch.Reset();
  TESSERA_RETURN_IF_ERROR(world.CheckIdle(rank));
  if (!first.IsWhole() || !second.IsWhole()) {
    return absl::InternalError("memory around a buffer was written");
  }
  if (in_place && shape.output > 0 &&
      shape.input > shape.output) {  // The rest of the input is unchanged.
    std::memcpy(own_output.data(), output, own_output.size());
    std::memcpy(output, source.data() + shape.own_block * element,
                own_output.size());
    output = own_output.data();
  }
  if ((!in_place || shape.input > shape.output) && !source.empty() &&
      std::memcmp(input, source.data(), source.size()) != 0) {
    return absl::InternalError("the input was written");
  }
  return shape.has_output ? Check(rank, output) : absl::OkStatus();
}

std::string RunCases(int64_t ranks, const ThreadWorldOptions& options,
                     const std::vector<AlgorithmCase>& cases) {
  std::vector<PreparedCase> prepared;
  for (const AlgorithmCase& c : cases) prepared.emplace_back(c, ranks);
  ThreadWorld world(ranks, options);
  const std::vector<absl::Status> statuses =
      world.Run([&](Transport& transport) -> absl::Status {
        Scratch scratch;
        uint64_t sequence = 0;
        for (const PreparedCase& c : prepared) {
          TESSERA_RETURN_IF_ERROR(c.Run(world, transport, ++sequence, scratch),
                                  Annotate(_, Describe(c.test_case())));
        }
        return absl::OkStatus();
      });
  std::string errors;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank].ok() || absl::IsAborted(statuses[rank])) continue;
    absl::StrAppend(&errors, "rank ", rank, " of ", ranks, ": ",
                    statuses[rank].ToString(), "\n");
  }
  return errors;
}

AlgorithmCase RandomCase(Algorithm algorithm, std::mt19937_64& random,
                         int64_t ranks, int64_t largest) {
  constexpr DType kTypes[] = {DType::kF64,  DType::kF32, DType::kF16,
                              DType::kBF16, DType::kI64, DType::kI32,
                              DType::kI8,   DType::kU8};
  AlgorithmCase c;
  c.algorithm = algorithm;
  do {
    c.kind = kCollectiveKinds[random() % kCollectiveKinds.size()];
  } while (!Supports(algorithm, c.kind, false));
  c.uneven = random() % 2 == 0 && Supports(algorithm, c.kind, true);
  c.dtype = kTypes[random() % std::size(kTypes)];
  do {
    c.reduction.op = kAllReduceOps[random() % kAllReduceOps.size()];
  } while (!IsReducible(c.dtype, c.reduction.op));
  if (c.reduction.op == ReduceOp::kScaledSum) {
    c.reduction.scale = IsInteger(c.dtype) ? 3 : 0.375;
  }
  c.count = static_cast<int64_t>(random() % static_cast<uint64_t>(largest + 1));
  c.root = Rank(static_cast<int64_t>(random() % static_cast<uint64_t>(ranks)));
  c.in_place = random() % 2 == 0;
  c.mixed = random() % 4 == 0;
  if (c.uneven && c.kind == OpKind::kAllToAll) c.in_place = c.mixed = false;
  constexpr int64_t kChunks[] = {1, 16, 64, 200, 4096};
  c.options.chunk_bytes = kChunks[random() % std::size(kChunks)];
  c.options.reproducible = random() % 3 == 0;
  c.seed = random();
  return c;
}

}  // namespace tessera::collectives
