// Compares the kernels with the CPU's Combine and copies, on host memory, so
// that AddressSanitizer checks every access.
#include "collectives/cuda/collective_kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "collectives/cuda/kernel_arguments.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/reduction.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(std::mt19937_64& random, size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct FoldCase {
  DType dtype;
  Reduction reduction;
  int ranks = 1;
  int64_t count = 1;
  size_t offset = 0;  // Elements behind an aligned address.
};

// The outputs of Combine and of the kernel for random bits, which include NaNs,
// infinities and subnormals.
void ExpectCombines(const FoldCase& c, std::mt19937_64& random) {
  const auto width = static_cast<size_t>(SizeInBytes(c.dtype));
  const size_t offset = c.offset * width;
  const size_t size = offset + static_cast<size_t>(c.count) * width;
  const Combination whole = Combination::Whole(c.reduction, c.dtype, c.ranks);
  std::vector<Bytes> inputs;
  FoldJob fold = {.source_count = c.ranks,
                  .target_count = 2,
                  .count = c.count,
                  .dtype = c.dtype,
                  .op = c.reduction.op,
                  .scale = whole.input_scale,
                  .divisor = whole.divisor};
  std::vector<const void*> sources;
  for (int r = 0; r < c.ranks; ++r) inputs.push_back(RandomBytes(random, size));
  for (int r = 0; r < c.ranks; ++r) {
    sources.push_back(inputs[static_cast<size_t>(r)].data() + offset);
    fold.sources[static_cast<size_t>(r)] = sources.back();
  }
  Bytes expected(size);
  void* const to = expected.data() + offset;
  Combine(whole, sources, {&to, 1}, c.count);
  // In place, and elsewhere.
  Bytes elsewhere(size);
  fold.targets = {inputs[0].data() + offset, elsewhere.data() + offset};
  emulated::LaunchFold(nullptr, fold);
  for (const Bytes* const result : {&inputs[0], &elsewhere}) {
    ASSERT_EQ(std::memcmp(result->data() + offset, to, size - offset), 0)
        << DTypeName(c.dtype) << " " << ReduceOpName(c.reduction.op) << " of "
        << c.count << " on " << c.ranks << " ranks";
  }
}

TEST(CollectiveKernelsTest, FoldMatchesCpuBitForBit) {
  std::mt19937_64 random(1);
  for (const DType dtype : kAllDTypes) {
    if (!IsReducible(dtype)) continue;
    for (const Reduction reduction :
         {Reduction::Sum(), Reduction::Average(), Reduction::Product(),
          Reduction::Min(), Reduction::Max(), Reduction::ScaledSum(3),
          Reduction::BitAnd(), Reduction::BitOr(), Reduction::BitXor()}) {
      if (!IsReducible(dtype, reduction.op)) continue;
      for (const int ranks : {2, 3, 4, 5}) {
        for (const int64_t count : {1, 7, 64, 1001}) {
          for (const size_t offset : {0, 1}) {
            ExpectCombines({dtype, reduction, ranks, count, offset}, random);
          }
        }
      }
    }
  }
}

TEST(CollectiveKernelsTest, ASingleRankIsScaledAndRounded) {
  std::mt19937_64 random(2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    ExpectCombines({dtype, Reduction::ScaledSum(1.0 / 3), 1, 1000, 0}, random);
  }
}

TEST(CollectiveKernelsTest, MovesRangesOfAnySizeAndAlignment) {
  std::mt19937_64 random(3);
  for (const size_t from : {0, 1, 4}) {
    for (const size_t to : {0, 4, 7}) {
      const Bytes source = RandomBytes(random, 10'000);
      Bytes target(10'000), expected(10'000);
      Moves moves;
      size_t at = 0;
      for (const int64_t bytes : {1, 16, 17, 0, 4000, 3}) {
        moves.moves[static_cast<size_t>(moves.count++)] = {
            .from = source.data() + at + from,
            .to = target.data() + at + to,
            .bytes = bytes};
        std::memcpy(expected.data() + at + to, source.data() + at + from,
                    static_cast<size_t>(bytes));
        at += (static_cast<size_t>(bytes) + 47) / 16 * 16;
      }
      emulated::LaunchMoves(nullptr, moves);
      EXPECT_EQ(target, expected) << from << " to " << to;
    }
  }
}

TEST(CollectiveKernelsTest, SwapsRangesOfOneMove) {
  std::mt19937_64 random(4);
  for (const size_t offset : {0, 1}) {
    for (const int64_t bytes : {1, 15, 16, 1000}) {
      Bytes a = RandomBytes(random, 1001), b = RandomBytes(random, 1001);
      Bytes wanted_a = a, wanted_b = b;
      std::memcpy(wanted_a.data() + offset, b.data() + offset,
                  static_cast<size_t>(bytes));
      std::memcpy(wanted_b.data() + offset, a.data() + offset,
                  static_cast<size_t>(bytes));
      Moves moves;
      moves.count = 1;
      moves.moves[0] = {a.data() + offset, b.data() + offset, bytes,
                        b.data() + offset, a.data() + offset, bytes};
      emulated::LaunchMoves(nullptr, moves);
      EXPECT_EQ(a, wanted_a);
      EXPECT_EQ(b, wanted_b);
    }
  }
}

TEST(CollectiveKernelsTest, RangesOfAMoveMayHaveDifferentSizes) {
  std::mt19937_64 random(5);
  const Bytes there = RandomBytes(random, 100), back = RandomBytes(random, 37);
  Bytes to(100), back_to(37);
  Moves moves;
  moves.count = 1;
  moves.moves[0] = {there.data(), to.data(),      100,
                    back.data(),  back_to.data(), 37};
  emulated::LaunchMoves(nullptr, moves);
  EXPECT_EQ(to, there);
  EXPECT_EQ(back_to, back);
}

}  // namespace
}  // namespace tessera::collectives
