// Kept files: damaged, truncated, foreign and whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/file_tier_fixture.h"
#include "offload/tier/tier_model.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Changes one bit of the last place in the file where `needle` lies.
void FlipBitOf(const std::string& path, std::span<const std::byte> needle) {
  const UniqueFd fd(open(path.c_str(), O_RDWR));
  struct stat info = {};
  fstat(fd.get(), &info);
  Bytes all(static_cast<size_t>(info.st_size));
  ASSERT_EQ(pread(fd.get(), all.data(), all.size(), 0), info.st_size);
  const auto found =
      std::find_end(all.begin(), all.end(), needle.begin(), needle.end());
  ASSERT_NE(found, all.end());
  std::byte flipped = found[5] ^ std::byte{4};
  ASSERT_EQ(pwrite(fd.get(), &flipped, 1, found - all.begin() + 5), 1);
}

TEST(FileTierRecoveryTest, AFlippedBitIsDataLossNotWrongBytes) {
  const std::string path = FreshPath("flip");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  const Bytes bytes = PatternBytes(20000, 1);
  TESSERA_ASSERT_OK(tier->Put("adam.m", bytes, {}));
  TESSERA_ASSERT_OK(tier->Put("adam.v", PatternBytes(20000, 2), {}));
  FlipBitOf(path, std::span(bytes).subspan(8192, 4096));
  Bytes got(20000);
  EXPECT_THAT(tier->Get("adam.m", got),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("block \"adam.m\""),
                             HasSubstr("bytes 8192 to 12288"),
                             HasSubstr("of file " + path))));
  // What lies elsewhere is read all the same.
  got.resize(8192);
  TESSERA_EXPECT_OK(tier->GetRange("adam.m", 0, got));
  EXPECT_EQ(Read(*tier, "adam.v"), PatternBytes(20000, 2));
  // Opened again, the block is known to be lost; nothing else is.
  tier.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_THAT(tier->recovery().lost, ElementsAre("adam.m"));
  EXPECT_THAT(tier->Keys(), ElementsAre("adam.v"));
}

TEST(FileTierRecoveryTest, ATornVersionFallsBackToTheOneBefore) {
  const std::string path = FreshPath("torn");
  const Bytes older = PatternBytes(20000, 1), newer = PatternBytes(20000, 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  TESSERA_ASSERT_OK(tier->Put("w", older, {}));
  TESSERA_ASSERT_OK(tier->Put("w", newer, {}));
  tier.reset();
  FlipBitOf(path, std::span(newer).first(4096));
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_EQ(tier->recovery().older, 1);
  EXPECT_THAT(tier->recovery().lost, IsEmpty());
  EXPECT_EQ(Read(*tier, "w"), older);
  // The next version supersedes the damaged one.
  TESSERA_ASSERT_OK(tier->Put("w", PatternBytes(30000, 3), {}));
  tier.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_EQ(tier->recovery().older, 0);
  EXPECT_EQ(Read(*tier, "w"), PatternBytes(30000, 3));
}

TEST(FileTierRecoveryTest, ATruncatedFileKeepsWhatItHolds) {
  const std::string path = FreshPath("cut");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  for (int i = 0; i < 8; ++i) {
    TESSERA_ASSERT_OK(
        tier->Put("k" + std::to_string(i), PatternBytes(10000, i), {}));
  }
  const int64_t size = tier->file_bytes();
  ASSERT_EQ(truncate(path.c_str(), size - 30000), 0);
  Bytes got(10000);
  EXPECT_THAT(tier->Get("k7", got),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("\"k7\""), HasSubstr("truncated"))));
  tier.reset();
  TESSERA_ASSERT_OK_AND_ASSIGN(tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_THAT(tier->recovery().lost, ElementsAre("k5", "k6", "k7"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Read(*tier, "k" + std::to_string(i)), PatternBytes(10000, i));
  }
  tier.reset();
  ASSERT_EQ(truncate(path.c_str(), 100000), 0);
  EXPECT_THAT(
      FileTier::Create(Budget(), Options(path, true)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has lost its table")));
}

TEST(FileTierRecoveryTest, AnotherFileIsNeverOverwritten) {
  const std::string path = FreshPath("other");
  for (const size_t size : {size_t{20}, size_t{5000}, size_t{100000}}) {
    const Bytes bytes = PatternBytes(size, 1);
    {
      const UniqueFd fd(open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600));
      ASSERT_EQ(write(fd.get(), bytes.data(), size), size);
    }
    EXPECT_THAT(FileTier::Create(Budget(), Options(path, true)),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(path), HasSubstr("no block file"))));
    Bytes got(size);
    const UniqueFd fd(open(path.c_str(), O_RDONLY));
    EXPECT_EQ(read(fd.get(), got.data(), size), size);
    EXPECT_EQ(got, bytes);
  }
}

TEST(FileTierRecoveryTest, AKeptFileComesBackAsItWas) {
  const std::string path = FreshPath("kept");
  const BlockInfo info = {Purpose::kOptimizer, DType::kBF16, 77};
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto tier, FileTier::Create(Budget(), Options(path, true)));
    // More than the first table's 64 slots.
    for (int i = 0; i < 300; ++i) {
      TESSERA_ASSERT_OK(
          tier->Put("k" + std::to_string(i), PatternBytes(i * 7, i), info));
    }
    for (int i = 0; i < 300; i += 3) {
      TESSERA_ASSERT_OK(tier->Drop("k" + std::to_string(i)));
    }
    EXPECT_THAT(
        FileTier::Create(Budget(), Options(path, true)),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in use")));
  }
  EXPECT_THAT(FileTier::Create(Budget(1000), Options(path, true)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto tier,
                               FileTier::Create(Budget(), Options(path, true)));
  EXPECT_EQ(tier->recovery().blocks, 200);
  int64_t bytes = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_EQ(tier->Contains(key), i % 3 != 0) << key;
    if (i % 3 == 0) continue;
    ASSERT_EQ(Read(*tier, key), PatternBytes(i * 7, i));
    EXPECT_EQ(tier->Stat(key)->info, info);
    bytes += i * 7;
  }
  EXPECT_EQ(tier->usage()[0].usage.of(Purpose::kOptimizer).current, bytes);
}

}  // namespace
}  // namespace tessera::offload
