// End to end: a file tier, unaligned blocks, several steps, and a check of the
// final bytes.
#include <cstring>
#include <random>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/prefetch/prefetcher.h"
#include "offload/tier/file_tier.h"

namespace tessera::offload {
namespace {

std::vector<std::byte> Bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(PrefetcherFileTest, StepsOverAFileKeepEveryByte) {
  FileTierOptions options;
  options.path = testing::TempDir();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto file,
      FileTier::Create(std::make_shared<Accounting>("file", kUnlimited),
                       std::move(options)));
  constexpr int kBlocks = 24;
  std::vector<std::vector<std::byte>> expected;
  for (int i = 0; i < kBlocks; ++i) {
    expected.push_back(Bytes(static_cast<size_t>(1000 + 40'000 * (i % 7)),
                             static_cast<uint64_t>(i)));
    TESSERA_ASSERT_OK(file->Put(std::to_string(i), expected.back(),
                                {Purpose::kOptimizer, DType::kF32}));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto prefetcher,
                               Prefetcher::Create(*file, {.budget = 900'000}));
  for (int step = 0; step < 4; ++step) {
    TESSERA_ASSERT_OK(prefetcher->BeginStep());
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int block = i < kBlocks ? i : 2 * kBlocks - 1 - i;
      std::vector<std::byte>& bytes = expected[static_cast<size_t>(block)];
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto view,
                                   prefetcher->Use(std::to_string(block)));
      ASSERT_EQ(view.size(), bytes.size());
      ASSERT_EQ(std::memcmp(view.data(), bytes.data(), bytes.size()), 0);
      if (i >= kBlocks) {
        bytes = Bytes(bytes.size(), static_cast<uint64_t>(1000 * step + i));
        std::memcpy(view.data(), bytes.data(), bytes.size());
      }
      TESSERA_ASSERT_OK(
          prefetcher->Done(std::to_string(block), /*dirty=*/i >= kBlocks));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report,
                                 prefetcher->EndStep());
    EXPECT_EQ(report.planned, step > 0);
    EXPECT_EQ(report.deviations, 0);
    TESSERA_EXPECT_OK(report.store_status);
  }
  TESSERA_ASSERT_OK(prefetcher->Flush());
  for (int i = 0; i < kBlocks; ++i) {
    std::vector<std::byte> bytes(expected[static_cast<size_t>(i)].size());
    TESSERA_ASSERT_OK(file->Get(std::to_string(i), bytes));
    EXPECT_EQ(bytes, expected[static_cast<size_t>(i)]) << i;
  }
}

}  // namespace
}  // namespace tessera::offload
