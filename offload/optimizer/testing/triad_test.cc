#include "offload/optimizer/testing/triad.h"

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

TEST(Triad, ComputesBothKindsOverEveryElement) {
  constexpr size_t kCount = 5 * kTriadStep;
  auto a = hwy::AllocateAligned<double>(kCount);
  auto b = hwy::AllocateAligned<double>(kCount);
  auto c = hwy::AllocateAligned<double>(kCount);
  for (const auto run : {RunTriad, RunStreamingTriad}) {
    for (size_t i = 0; i < kCount; ++i) {
      a[i] = -1;
      b[i] = static_cast<double>(i);
      c[i] = static_cast<double>(i * i);
    }
    run({a.get(), b.get(), c.get(), kCount}, 0.5);
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(a[i],
                static_cast<double>(i) + 0.5 * static_cast<double>(i * i));
    }
  }
}

TEST(MeasureTriad, MeasuresPlausibleBandwidth) {
  for (int threads : {1, 2, 3}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const TriadBandwidth triad,
                                 MeasureTriad(threads, int64_t{3} << 20, 3));
    for (double bandwidth : {triad.ordinary, triad.streaming}) {
      EXPECT_GT(bandwidth, 1e6);
      EXPECT_LT(bandwidth, 1e14);
    }
    EXPECT_GE(triad.best(), triad.ordinary);
    EXPECT_GE(triad.best(), triad.streaming);
  }
}

TEST(Triad, KeepsItsThreadsFromPassToPass) {
  for (int threads : {1, 4}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto triad, Triad::Create(threads, threads * int64_t{64 << 10}));
    EXPECT_EQ(triad->threads(), threads);
    EXPECT_LE(triad->counted_bytes(), threads * (64 << 10));
    EXPECT_GT(triad->counted_bytes(), threads * (60 << 10));
    for (int pass = 0; pass < 50; ++pass) {
      const TriadBandwidth bandwidth = triad->Measure();
      EXPECT_GT(bandwidth.ordinary, 1e5);
      EXPECT_GT(bandwidth.streaming, 1e5);
    }
    // Destruction without a pass works.
    TESSERA_ASSERT_OK(Triad::Create(threads, 1 << 20).status());
  }
  EXPECT_THAT(Triad::Create(0, 1 << 20),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MeasureTriad, RejectsInvalidArguments) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(MeasureTriad(0, 1 << 20),
              StatusIs(kInvalid, HasSubstr("0 threads; give 1 to 1024")));
  EXPECT_THAT(MeasureTriad(1025, 1 << 30), StatusIs(kInvalid));
  EXPECT_THAT(MeasureTriad(2, 8191),
              StatusIs(kInvalid, HasSubstr("8191 bytes for 2 threads")));
  EXPECT_THAT(MeasureTriad(1, -1), StatusIs(kInvalid));
  EXPECT_THAT(MeasureTriad(1, 1 << 20, 0),
              StatusIs(kInvalid, HasSubstr("0 passes")));
  EXPECT_THAT(MeasureTriad(1, std::numeric_limits<int64_t>::max()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("give fewer bytes")));
}

}  // namespace
}  // namespace tessera::offload
