#include "tensor_parallel/random/rounded_normals.h"

#include <algorithm>
#include <cstring>
#include <numbers>

#include "base/dtype/convert.h"
#include "base/highway_targets.h"
#include "base/status_macros.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/random/rounded_normals.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using U64 = hn::ScalableTag<uint64_t>;
using Doubles = hn::Vec<F64>;
using Words = hn::Vec<U64>;

struct WordsOfPair {
  Words first, second;
};
struct SineCosine {
  Doubles sine, cosine;
};

// The product of the lower halves of each lane.
HWY_INLINE Words MultiplyLow(Words a, Words b) {
#if HWY_TARGET == HWY_SCALAR
  constexpr uint64_t kLow = 0xffffffff;
  return hn::Set(U64(), (hn::GetLane(a) & kLow) * (hn::GetLane(b) & kLow));
#else
  const hn::Repartition<uint32_t, U64> half;
  return hn::MulEven(hn::BitCast(half, a), hn::BitCast(half, b));
#endif
}

// a0, b0, a1, b1 ...
HWY_INLINE void StoreInTurn(Doubles a, Doubles b, double* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a);
  to[1] = hn::GetLane(b);
#else
  hn::StoreInterleaved2(a, b, F64(), to);
#endif
}

// Philox4x32, each word in the lower half of a lane; upper halves are ignored.
HWY_INLINE WordsOfPair PairsFrom(const RandomKey& key, uint64_t first) {
  const U64 d;
  Words word0 = hn::Iota(d, first);
  Words word1 = hn::ShiftRight<32>(word0);
  Words word2 = hn::Set(d, key.stream);
  Words word3 = hn::Set(d, key.stream >> 32);
  const Words multiplier0 = hn::Set(d, 0xD2511F53);
  const Words multiplier1 = hn::Set(d, 0xCD9E8D57);
  auto key0 = static_cast<uint32_t>(key.seed);
  auto key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words product0 = MultiplyLow(multiplier0, word0);
    const Words product1 = MultiplyLow(multiplier1, word2);
    word0 =
        hn::Xor(hn::ShiftRight<32>(product1), hn::Xor(word1, hn::Set(d, key0)));
    word2 =
        hn::Xor(hn::ShiftRight<32>(product0), hn::Xor(word3, hn::Set(d, key1)));
    word1 = product1;
    word3 = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const Words lower = hn::Set(d, 0xffffffff);
  return {hn::Or(hn::ShiftLeft<32>(word1), hn::And(word0, lower)),
          hn::Or(hn::ShiftLeft<32>(word3), hn::And(word2, lower))};
}

// The upper 53 bits, as a number below 2^53.
HWY_INLINE Doubles UpperBits(Words bits) {
  const hn::RebindToSigned<U64> integer;
  return hn::ConvertTo(F64(), hn::BitCast(integer, hn::ShiftRight<11>(bits)));
}

// c[0] + x c[1] + x^2 c[2] ..., by Horner.
template <size_t n>
HWY_INLINE Doubles Polynomial(Doubles x, const double (&c)[n]) {
  const F64 d;
  Doubles sum = hn::Set(d, c[n - 1]);
  for (size_t i = n - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

// ln x for 2^-53 <= x <= 1, within 2^-49 of itself. x = 2^k m with m between
// the roots of 1/2 and of 2, and ln m = 2 artanh(s) with s = (m - 1) / (m + 1),
// |s| < 0.172, by its series, whose first term left out is 2^-50 of the sum.
HWY_INLINE Doubles Log(Doubles x) {
  constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr uint64_t kOne = 0x3ff0000000000000;
  constexpr double kSeries[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,
                                2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17};
  const F64 d;
  const U64 u;
  const Words shifted =
      hn::Add(hn::BitCast(u, x), hn::Set(u, kOne - kRootOfHalf));
  const Doubles m = hn::BitCast(
      d, hn::Add(hn::And(shifted, hn::Set(u, (uint64_t{1} << 52) - 1)),
                 hn::Set(u, kRootOfHalf)));
  // The biased exponent becomes the last bits of a number of 2^52.
  const Doubles k =
      hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftRight<52>(shifted),
                                    hn::Set(u, 0x4330000000000000))),
              hn::Set(d, 0x1p52 + 1023));
  const Doubles f = hn::Sub(m, hn::Set(d, 1));
  const Doubles s = hn::Div(f, hn::Add(f, hn::Set(d, 2)));
  const Doubles s2 = hn::Mul(s, s);
  const Doubles tail = hn::Mul(hn::Mul(s, s2), Polynomial(s2, kSeries));
  const Doubles log_m = hn::Add(hn::Add(s, s), tail);
  return hn::MulAdd(k, hn::Set(d, std::numbers::ln2), log_m);
}

// sin and cos of 2 pi u for 0 <= u < 1, within 2^-50, from `quarters` = 4 u: an
// integer and an exact remainder of at most 1/2.
HWY_INLINE SineCosine SineAndCosine(Doubles quarters) {
  constexpr double kSine[] = {
      -1.0 / 6,        1.0 / 120,        -1.0 / 5040,         1.0 / 362880,
      -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000};
  constexpr double kCosine[] = {-1.0 / 2,           1.0 / 24,
                                -1.0 / 720,         1.0 / 40320,
                                -1.0 / 3628800,     1.0 / 479001600,
                                -1.0 / 87178291200, 1.0 / 20922789888000};
  const F64 d;
  const U64 u;
  // Integers that are added to this number appear in its last bits.
  const Doubles magic = hn::Set(d, 0x1.8p52);
  const Doubles shifted = hn::Add(quarters, magic);
  const Words quarter = hn::BitCast(u, shifted);
  const Doubles y = hn::Mul(hn::Sub(quarters, hn::Sub(shifted, magic)),
                            hn::Set(d, std::numbers::pi / 2));
  const Doubles y2 = hn::Mul(y, y);
  const Doubles sine = hn::MulAdd(hn::Mul(y, y2), Polynomial(y2, kSine), y);
  const Doubles cosine = hn::MulAdd(y2, Polynomial(y2, kCosine), hn::Set(d, 1));
  const Words one = hn::Set(u, 1), two = hn::Set(u, 2);
  const auto is_odd = hn::MaskFromVec(hn::BitCast(
      d,
      hn::Neg(hn::BitCast(hn::RebindToSigned<U64>(), hn::And(quarter, one)))));
  const Words sine_sign = hn::ShiftLeft<62>(hn::And(quarter, two));
  const Words cosine_sign =
      hn::ShiftLeft<62>(hn::And(hn::Add(quarter, one), two));
  return {
      hn::Xor(hn::IfThenElse(is_odd, cosine, sine), hn::BitCast(d, sine_sign)),
      hn::Xor(hn::IfThenElse(is_odd, sine, cosine),
              hn::BitCast(d, cosine_sign))};
}

// Philox::Normal rounds in every operation and adds less than 2^-50 of the
// radius to these errors; the interval is more than ten times as wide.
void Bound(const NormalBounds& bounds) {
  const F64 d;
  const size_t step = 2 * hn::Lanes(d);
  const Doubles deviation = hn::Set(d, bounds.deviation);
  for (size_t i = 0; i < bounds.low.size(); i += step) {
    const WordsOfPair words = PairsFrom(bounds.key, bounds.first_pair + i / 2);
    const Doubles x = hn::NegMulAdd(UpperBits(words.first), hn::Set(d, 0x1p-53),
                                    hn::Set(d, 1));
    const Doubles radius = hn::Sqrt(hn::Mul(hn::Set(d, -2), Log(x)));
    const SineCosine direction =
        SineAndCosine(hn::Mul(UpperBits(words.second), hn::Set(d, 0x1p-51)));
    const Doubles cosine = hn::Mul(radius, direction.cosine);
    const Doubles sine = hn::Mul(radius, direction.sine);
    // The error is never 0, so that the interval of a number 0 contains both
    // signs and the number is recomputed.
    const Doubles error =
        hn::MulAdd(radius, hn::Set(d, 0x1p-46), hn::Set(d, 0x1p-500));
    StoreInTurn(hn::Mul(hn::Sub(cosine, error), deviation),
                hn::Mul(hn::Sub(sine, error), deviation),
                bounds.low.data() + i);
    StoreInTurn(hn::Mul(hn::Add(cosine, error), deviation),
                hn::Mul(hn::Add(sine, error), deviation),
                bounds.high.data() + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel {
namespace internal {

HWY_EXPORT(Bound);

void BoundNormals(const NormalBounds& bounds) {
  HWY_DYNAMIC_DISPATCH(Bound)(bounds);
}

}  // namespace internal

namespace {

// The size of a block, which stays in the first cache.
constexpr size_t kNumbers = 512;

// Elements `begin` to `begin + count` of the block that begins with `pair`.
struct Part {
  uint64_t pair = 0;
  size_t begin = 0;
  size_t count = 0;
};

absl::Status FillPart(const RandomKey& key, const Part& part, double deviation,
                      DType dtype, std::span<std::byte> values) {
  constexpr size_t kLargest = 8;  // Bytes of an element.
  const auto width = static_cast<size_t>(SizeInBytes(dtype));
  alignas(64) double low[kNumbers], high[kNumbers];
  if (dtype == DType::kF64) {  // No interval rounds to one value.
    const std::span<double> exact = std::span(low).first(part.count);
    Philox(key).FillNormal(2 * part.pair + part.begin, exact);
    for (double& x : exact) x *= deviation;
    std::memcpy(values.data(), low, values.size());
    return absl::OkStatus();
  }
  const size_t numbers = (part.begin + part.count + 15) / 16 * 16;
  internal::BoundNormals({.key = key,
                          .first_pair = part.pair,
                          .deviation = deviation,
                          .low = std::span(low).first(numbers),
                          .high = std::span(high).first(numbers)});
  alignas(64) std::byte other[kNumbers * kLargest];
  const auto round = [&](const double* from, std::span<std::byte> to) {
    return Convert(DType::kF64,
                   std::as_bytes(std::span(from + part.begin, part.count)),
                   dtype, to);
  };
  TESSERA_RETURN_IF_ERROR(round(low, values));
  TESSERA_RETURN_IF_ERROR(round(high, std::span(other, values.size())));
  if (std::memcmp(values.data(), other, values.size()) == 0) {
    return absl::OkStatus();
  }
  const Philox random(key);
  for (size_t i = 0; i < part.count; ++i) {
    const std::span<std::byte> value = values.subspan(i * width, width);
    if (std::memcmp(value.data(), other + i * width, width) == 0) continue;
    const double exact =
        random.Normal(2 * part.pair + part.begin + i) * deviation;
    TESSERA_RETURN_IF_ERROR(Convert(
        DType::kF64, std::as_bytes(std::span(&exact, 1)), dtype, value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillRoundedNormals(const RandomKey& key, uint64_t first,
                                double deviation, DType dtype,
                                std::span<std::byte> values) {
  const auto width = static_cast<size_t>(SizeInBytes(dtype));
  const size_t count = values.size() / width;
  TESSERA_RETURN_IF_ERROR(CheckConvertSizes(DType::kF64, count * sizeof(double),
                                            dtype, values.size()));
  for (size_t i = 0; i < count;) {
    const uint64_t index = first + i;
    const size_t begin = index % 2;
    const size_t part = std::min(kNumbers - begin, count - i);
    TESSERA_RETURN_IF_ERROR(
        FillPart(key, {.pair = index / 2, .begin = begin, .count = part},
                 deviation, dtype, values.subspan(i * width, part * width)));
    i += part;
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
#endif  // HWY_ONCE
