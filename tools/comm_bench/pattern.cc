#include "tools/comm_bench/pattern.h"

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

// What all numbers are multiples of, so that division leaves whole ones.
double StepOf(const Reduction& reduction, int64_t world) {
  if (reduction.op == ReduceOp::kAverage) return static_cast<double>(world);
  if (reduction.op != ReduceOp::kScaledSum) return 1;
  return reduction.scale == 0 ? 1
                              : std::max(1.0, 1 / std::abs(reduction.scale));
}

// One period. One number in `sparseness` is not the neutral one.
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

// Whether every partial result is exact too: for an average that is the sum.
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
      absl::StrCat("element ", index, " is ", have, ", but should be ", want));
}

}  // namespace tessera::tools
