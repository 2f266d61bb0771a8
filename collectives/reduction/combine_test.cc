#include "collectives/reduction/combine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "base/dtype/dtype_traits.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace tessera::collectives {
namespace {

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                            DType::kI64, DType::kI32, DType::kI8,  DType::kU8};

// The header's definition, one element at a time, in wider types.
template <typename T>
T Reference(const Combination& c, const std::vector<T>& inputs) {
  if constexpr (std::is_integral_v<T>) {
    // Modulo 2^64, then modulo the size of the type.
    const auto scaled = [&](T x) {
      return static_cast<T>(
          static_cast<uint64_t>(x) *
          static_cast<uint64_t>(static_cast<int64_t>(c.input_scale)));
    };
    T result = scaled(inputs[0]);
    for (size_t i = 1; i < inputs.size(); ++i) {
      const T x = scaled(inputs[i]);
      if (c.op == ReduceOp::kProduct) {
        result = static_cast<T>(static_cast<uint64_t>(result) *
                                static_cast<uint64_t>(x));
      } else if (c.op == ReduceOp::kMin) {
        result = std::min(result, x);
      } else if (c.op == ReduceOp::kMax) {
        result = std::max(result, x);
      } else if (c.op == ReduceOp::kBitAnd) {
        result = static_cast<T>(result & x);
      } else if (c.op == ReduceOp::kBitOr) {
        result = static_cast<T>(result | x);
      } else if (c.op == ReduceOp::kBitXor) {
        result = static_cast<T>(result ^ x);
      } else {
        result = static_cast<T>(static_cast<uint64_t>(result) +
                                static_cast<uint64_t>(x));
      }
    }
    return static_cast<T>(result / static_cast<int64_t>(c.divisor));
  } else {
    if (inputs.size() == 1 && c.KeepsSingleSource()) return inputs[0];
    using W = std::conditional_t<std::is_same_v<T, double>, double, float>;
    // volatile prevents fused operations and excess precision.
    const volatile W scale = static_cast<W>(c.input_scale);
    volatile W result = static_cast<W>(inputs[0]);
    if (c.input_scale != 1.0) result = result * scale;
    for (size_t i = 1; i < inputs.size(); ++i) {
      volatile W x = static_cast<W>(inputs[i]);
      if (c.input_scale != 1.0) x = x * scale;
      const W a = result, b = x;
      if (c.op == ReduceOp::kProduct) {
        result = a * b;
      } else if (c.op == ReduceOp::kMin) {
        result = std::isnan(a) || a < b ? a : b;
      } else if (c.op == ReduceOp::kMax) {
        result = std::isnan(a) || a > b ? a : b;
      } else {
        result = a + b;
      }
    }
    if (c.divisor != 1) result = result / static_cast<W>(c.divisor);
    const W last = result;
    if (std::isnan(last)) return T(std::numeric_limits<W>::quiet_NaN());
    return T(last);
  }
}

template <typename T>
T RandomElement(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    constexpr float kSpecial[] = {0.0f,
                                  -0.0f,
                                  std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<float>::quiet_NaN(),
                                  1e-41f,
                                  65504.0f};
    if (random() % 16 == 0) return T(kSpecial[random() % 7]);
    if (random() % 4 == 0) {  // Any bits: subnormals, huge values, NaNs.
      std::array<std::byte, sizeof(T)> bits;
      for (std::byte& byte : bits) byte = static_cast<std::byte>(random());
      return std::bit_cast<T>(bits);
    }
    const float small = std::ldexp(
        static_cast<float>(static_cast<int64_t>(random() % 4001) - 2000),
        static_cast<int>(random() % 12) - 9);
    return T(small);
  }
}

// Compares bits, including those of NaNs.
template <typename T>
bool SameElement(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

struct Layout {
  size_t sources = 2;
  size_t destinations = 1;
  size_t count = 10;
  bool in_place = false;
  size_t shift = 0;  // Offset of buffers from an aligned address, in elements.
};

template <typename T>
void Check(Combination c, const Layout& layout, std::mt19937_64& random) {
  constexpr size_t kGuard = 8;
  const size_t size = layout.count + 2 * kGuard + 64;
  std::vector<std::vector<T>> memory(layout.sources + layout.destinations);
  std::vector<T*> starts;
  for (size_t b = 0; b < memory.size(); ++b) {
    memory[b].resize(size);
    for (T& element : memory[b]) element = RandomElement<T>(random);
    starts.push_back(memory[b].data() + kGuard + (layout.shift * (b + 1)) % 64);
  }
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (size_t s = 0; s < layout.sources; ++s) sources.push_back(starts[s]);
  for (size_t d = 0; d < layout.destinations; ++d) {
    destinations.push_back(starts[layout.sources + d]);
  }
  if (layout.in_place) destinations.back() = starts[layout.sources / 2];
  const auto before = memory;
  Combine(c, sources, destinations, static_cast<int64_t>(layout.count));
  for (void* const destination : destinations) {
    for (size_t i = 0; i < layout.count; ++i) {
      std::vector<T> inputs;
      for (size_t s = 0; s < layout.sources; ++s) {
        inputs.push_back(before[s][static_cast<size_t>(
            starts[s] - memory[s].data() + static_cast<ptrdiff_t>(i))]);
      }
      const T expected = Reference(c, inputs);
      const T actual = static_cast<T*>(destination)[i];
      ASSERT_TRUE(SameElement(actual, expected))
          << c.dtype << " " << c.op << " element " << i << " of "
          << layout.count << ": " << static_cast<double>(actual) << " for "
          << static_cast<double>(expected) << ", " << layout.sources
          << " sources, target " << hwy::SupportedTargets();
    }
  }
  // Nothing else was written.
  for (size_t b = 0; b < memory.size(); ++b) {
    const bool written =
        std::count(destinations.begin(), destinations.end(), starts[b]) > 0;
    for (size_t i = 0; i < size; ++i) {
      const auto first = static_cast<size_t>(starts[b] - memory[b].data());
      if (written && i >= first && i < first + layout.count) continue;
      ASSERT_TRUE(SameElement(memory[b][i], before[b][i])) << b << " " << i;
    }
  }
}

void CheckType(const Combination& c, const Layout& layout,
               std::mt19937_64& random) {
  DispatchDType(c.dtype, [&]<typename T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, F8E4M3> && !std::is_same_v<T, F8E5M2>) {
      Check<T>(c, layout, random);
    }
  });
}

// Runs the body with every instruction set of this machine.
template <typename Body>
void OnEveryTarget(const Body& body) {
  const int64_t all = hwy::SupportedTargets();
  for (int64_t left = all; left != 0; left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    body();
    if (::testing::Test::HasFatalFailure()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
}

Reduction ReductionOf(ReduceOp op, DType dtype) {
  if (op != ReduceOp::kScaledSum) return {op, 1.0};
  return Reduction::ScaledSum(IsInteger(dtype) ? 5 : 0.37);
}

TEST(CombineTest, MatchesReferenceForEveryTypeAndReduction) {
  OnEveryTarget([] {
    std::mt19937_64 random(1);
    for (DType dtype : kTypes) {
      for (ReduceOp op : kAllReduceOps) {
        if (!IsReducible(dtype, op)) continue;
        for (size_t sources = 1; sources <= 9; ++sources) {
          const Layout layout{.sources = sources,
                              .destinations = 1 + random() % 3,
                              .count = random() % 400,
                              .in_place = random() % 2 == 0,
                              .shift = random() % 5};
          Combination c = Combination::Whole(ReductionOf(op, dtype), dtype,
                                             static_cast<int64_t>(sources));
          if (random() % 2 == 0) c.stores = StoreMode::kStreaming;
          ASSERT_NO_FATAL_FAILURE(CheckType(c, layout, random));
        }
      }
    }
  });
}

TEST(CombineTest, HandlesEveryCount) {
  OnEveryTarget([] {
    std::mt19937_64 random(2);
    for (DType dtype : kTypes) {
      for (size_t count = 0; count <= 200; ++count) {
        Combination c = Combination::Partial(Reduction::Sum(), dtype);
        if (count % 2 == 0) c.stores = StoreMode::kStreaming;
        ASSERT_NO_FATAL_FAILURE(CheckType(
            c, {.sources = 2 + count % 4, .count = count, .shift = count % 3},
            random));
      }
      for (size_t count : {511, 512, 513, 1024, 5000}) {
        Combination c = Combination::Partial(Reduction::Max(), dtype);
        c.stores = StoreMode::kStreaming;
        ASSERT_NO_FATAL_FAILURE(CheckType(
            c, {.sources = 3, .destinations = 2, .count = count, .shift = 1},
            random));
      }
    }
  });
}

TEST(CombineTest, DividesLikeType) {
  OnEveryTarget([] {
    std::mt19937_64 random(4);
    for (DType dtype : kTypes) {
      for (int64_t divisor : {int64_t{2}, int64_t{3}, int64_t{7}, int64_t{64},
                              int64_t{300}, int64_t{1} << 40}) {
        for (size_t sources : {1, 2, 5}) {
          const Combination c =
              Combination::Whole(Reduction::Average(), dtype, divisor);
          ASSERT_NO_FATAL_FAILURE(
              CheckType(c, {.sources = sources, .count = 150}, random));
        }
      }
    }
  });
}

// Every bit pattern of the short floats, converted to f32 and back.
template <typename T>
void CheckEveryPattern() {
  std::vector<uint16_t> all(65536), out(65536), expected(65536);
  std::vector<T> none(65536, T(-0.0f));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<uint16_t>(i);
    const bool nan = std::isnan(static_cast<float>(std::bit_cast<T>(all[i])));
    expected[i] = nan ? std::bit_cast<uint16_t>(
                            T(std::numeric_limits<float>::quiet_NaN()))
                      : all[i];
  }
  const void* in[] = {all.data(), none.data()};
  void* to[] = {out.data()};
  Combine(Combination::Partial(Reduction::Sum(), kDTypeOf<T>), in, to, 65536);
  EXPECT_EQ(out, expected) << kDTypeOf<T> << hwy::SupportedTargets();
}

TEST(CombineTest, PreservesEveryShortFloat) {
  OnEveryTarget([] {
    CheckEveryPattern<F16>();
    CheckEveryPattern<BF16>();
  });
}

TEST(CombineTest, SplitRangeMatchesBitForBit) {
  std::mt19937_64 random(3);
  std::vector<float> a(3000), b(3000), c(3000), whole(3000), parts(3000);
  for (auto* values : {&a, &b, &c}) {
    for (float& x : *values) x = RandomElement<float>(random);
  }
  const Combination average =
      Combination::Whole(Reduction::Average(), DType::kF32, 3);
  const auto combine = [&](std::vector<float>& out, size_t from, size_t to) {
    const void* in[] = {&a[from], &b[from], &c[from]};
    void* destination[] = {&out[from]};
    Combine(average, in, destination, static_cast<int64_t>(to - from));
  };
  combine(whole, 0, 3000 - 1);
  for (size_t from = 0; from < 2999;) {
    const size_t to = std::min<size_t>(2999, from + 1 + random() % 700);
    combine(parts, from, to);
    from = to;
  }
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), 2999 * sizeof(float)), 0);
}

TEST(CombineTest, ShortFloatsAreRoundedOnce) {
  // 1 + 2^-8 + 2^-8: in bf16 adding either addend alone is a tie that rounds to
  // 1, but adding both is exact.
  const BF16 one(1.0f), tiny(std::ldexp(1.0f, -8));
  const void* in[] = {&one, &tiny, &tiny};
  BF16 sum(0.0f);
  void* out[] = {&sum};
  Combine(Combination::Partial(Reduction::Sum(), DType::kBF16), in, out, 1);
  EXPECT_EQ(static_cast<float>(sum), 1.0f + std::ldexp(1.0f, -7));
}

TEST(CombineTest, PartialStepsComposeWholeReduction) {
  const Reduction average = Reduction::Average();
  const Reduction scaled = Reduction::ScaledSum(0.5);
  EXPECT_TRUE(Combination::Partial(average, DType::kF32).KeepsSingleSource());
  EXPECT_EQ(Combination::DivideResult(average, DType::kF32, 7).divisor, 7);
  EXPECT_EQ(Combination::DivideResult(scaled, DType::kF32, 7).divisor, 1);
  EXPECT_EQ(Combination::ScaleInput(scaled, DType::kF32).input_scale, 0.5);
  EXPECT_EQ(Combination::Partial(scaled, DType::kF32).input_scale, 1.0);
  EXPECT_EQ(Combination::Whole(scaled, DType::kF32, 3).input_scale, 0.5);
  EXPECT_EQ(Combination::Whole(average, DType::kF32, 3).divisor, 3);
}

}  // namespace
}  // namespace tessera::collectives
