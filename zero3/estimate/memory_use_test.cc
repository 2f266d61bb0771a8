#include "zero3/estimate/memory_use.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/estimate/optimizer_state.h"

namespace tessera::zero3 {
namespace {

TEST(MemoryUseTest, SumsByTierPurposeAndKind) {
  MemoryUse use;
  EXPECT_EQ(use.Total(), 0);
  int64_t next = 1;
  int64_t state = 0;
  int64_t buffers = 0;
  int64_t host = 0;
  for (const auto& purpose : topology::EnumNames<Purpose>::kTable) {
    for (const auto& tier : topology::EnumNames<Tier>::kTable) {
      use.Add(purpose.value, tier.value, next);
      EXPECT_EQ(use.At(purpose.value, tier.value), next);
      (IsModelState(purpose.value) ? state : buffers) += next;
      if (tier.value == Tier::kHost) host += next;
      next *= 2;
    }
  }
  // Every cell has a bit of its own: each was counted once.
  EXPECT_EQ(use.Total(), (int64_t{1} << 24) - 1);
  EXPECT_EQ(use.ModelState(), state);
  EXPECT_EQ(use.ModelState(), (int64_t{1} << 15) - 1);
  EXPECT_EQ(use.Buffers(), buffers);
  EXPECT_EQ(use.Of(Tier::kHost), host);
  EXPECT_EQ(use.Of(Purpose::kCopies), 7 << 3);
  use.Add(Purpose::kCopies, Tier::kDevice, -8);
  EXPECT_EQ(use.At(Purpose::kCopies, Tier::kDevice), 0);
}

TEST(MemoryUseTest, PrintsWhatIsUsed) {
  MemoryUse use;
  use.Add(Purpose::kMoments, Tier::kHost, 800);
  use.Add(Purpose::kCopies, Tier::kDevice, 200);
  EXPECT_EQ(use.ToString(),
            "bytes                     device            host            file"
            "           total\n"
            "copies                       200               0               0"
            "             200\n"
            "moments                        0             800               0"
            "             800\n"
            "total                        200             800               0"
            "            1000\n");
}

static_assert(MomentBytes({}, 100) == 800);
static_assert(MomentBytes({.moments = 1}, 100) == 400);
static_assert(MomentBytes({.moments = 0, .type = MomentType::kBlock8}, 9) == 0);
static_assert(MomentBytes({.type = MomentType::kBf16}, 100) == 400);

TEST(MomentBytesTest, BlocksHaveOneScaleEach) {
  for (int64_t block = 1; block <= 9; ++block) {
    for (int64_t elements = 0; elements <= 40; ++elements) {
      int64_t bytes = 0;
      for (int64_t i = 0; i < elements; ++i) bytes += i % block == 0 ? 5 : 1;
      EXPECT_EQ(
          MomentBytes({.type = MomentType::kBlock8, .block = block}, elements),
          2 * bytes);
    }
  }
}

}  // namespace
}  // namespace tessera::zero3
