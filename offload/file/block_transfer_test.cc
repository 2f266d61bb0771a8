#include "offload/file/block_transfer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/async_file.h"
#include "offload/file/io_engine.h"
#include "offload/file/testing/blocking_file.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;
using Crcs = std::vector<uint32_t>;

constexpr int64_t kPiece = 4096;

Bytes RandomBytes(size_t bytes) {
  std::mt19937_64 random(bytes);
  Bytes out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

class BlockTransferTest : public testing::TestWithParam<bool> {
 protected:
  BlockTransferTest()
      : opened_(*OpenScratchFile(testing::TempDir(), GetParam())),
        accounting_(std::make_shared<Accounting>("bounce", kUnlimited)),
        pool_(*BouncePool::Create(accounting_, HostMemory(), kPiece, 2)),
        engine_(*CreateIoEngine(IoEngineKind::kAuto, 4)),
        file_(*engine_, opened_.fd.get(), "/x/f", opened_.alignment),
        transfer_(file_, *pool_, kPiece) {}

  absl::StatusOr<Crcs> Write(int64_t offset, std::span<const std::byte> bytes) {
    return AwaitDone<absl::StatusOr<Crcs>>(
        [&](auto done) { transfer_.Write(offset, bytes, std::move(done)); });
  }
  absl::Status Read(const BlockLocation& block, int64_t from,
                    std::span<std::byte> out) {
    return AwaitDone<absl::Status>(
        [&](auto done) { transfer_.Read(block, from, out, std::move(done)); });
  }

  OpenedFile opened_;
  std::shared_ptr<Accounting> accounting_;
  std::unique_ptr<BouncePool> pool_;
  std::unique_ptr<IoEngine> engine_;
  AsyncFile file_;
  BlockTransfer transfer_;
};

TEST_P(BlockTransferTest, RoundTripsAnySizeAndAddress) {
  for (size_t size : {0, 1, 511, 512, 4095, 4096, 4097, 40000, 65536}) {
    for (size_t shift : {0, 1, 512}) {
      const Bytes all = RandomBytes(size + shift);
      const auto bytes = std::span(all).subspan(shift);
      TESSERA_ASSERT_OK_AND_ASSIGN(Crcs crcs, Write(8192, bytes));
      EXPECT_EQ(crcs.size(), (size + kPiece - 1) / kPiece);
      Bytes got(size + shift);
      TESSERA_ASSERT_OK(Read({8192, static_cast<int64_t>(size), crcs}, 0,
                             std::span(got).subspan(shift)));
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), got.begin() + shift));
    }
  }
}

TEST_P(BlockTransferTest, ReadsBackAnyRange) {
  const Bytes bytes = RandomBytes(30000);
  TESSERA_ASSERT_OK_AND_ASSIGN(Crcs crcs, Write(0, bytes));
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const size_t from = random() % bytes.size();
    const size_t size = random() % (bytes.size() - from + 1);
    Bytes got(size);
    TESSERA_ASSERT_OK(Read({0, 30000, crcs}, static_cast<int64_t>(from), got));
    ASSERT_TRUE(std::equal(got.begin(), got.end(), bytes.begin() + from));
  }
}

TEST_P(BlockTransferTest, ChecksEveryPieceOfLargeBlocks) {
  const Bytes bytes = RandomBytes(1500 * kPiece + 17);
  const auto size = static_cast<int64_t>(bytes.size());
  TESSERA_ASSERT_OK_AND_ASSIGN(Crcs crcs, Write(0, bytes));
  EXPECT_EQ(crcs.size(), 1501u);
  Bytes got(bytes.size());
  TESSERA_ASSERT_OK(Read({0, size, crcs}, 0, got));
  EXPECT_TRUE(got == bytes);
  Bytes part(5 * kPiece + 3);
  TESSERA_ASSERT_OK(Read({0, size, crcs}, 7 * kPiece + 1, part));
  EXPECT_TRUE(
      std::equal(part.begin(), part.end(), bytes.begin() + 7 * kPiece + 1));
  // A flipped bit is detected by every access to its piece, and by no other.
  const std::byte flipped = bytes[100 * kPiece] ^ std::byte{1};
  Bytes page(bytes.begin() + 100 * kPiece, bytes.begin() + 101 * kPiece);
  page[0] = flipped;
  TESSERA_ASSERT_OK(Write(100 * kPiece, page).status());
  EXPECT_THAT(Read({0, size, crcs}, 0, got),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("bytes 409600 to 413696 (offset 409600 of "
                                 "file /x/f)")));
  EXPECT_FALSE(Read({0, size, crcs}, 101 * kPiece - 1, page).ok());
  EXPECT_FALSE(Read({0, size, crcs}, 99 * kPiece + 1, page).ok());
  TESSERA_EXPECT_OK(Read({0, size, crcs}, 99 * kPiece, page));
  TESSERA_EXPECT_OK(Read({0, size, crcs}, 101 * kPiece, page));
}

INSTANTIATE_TEST_SUITE_P(DirectAndCached, BlockTransferTest, testing::Bool());

TEST(BouncePoolTest, CountsItsBytesAndRejectsBadSizes) {
  const auto accounting = std::make_shared<Accounting>("host", 10000);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto pool, BouncePool::Create(accounting, HostMemory(), 4096, 2));
    EXPECT_EQ(accounting->usage().of(Purpose::kBuffers).current, 8192);
    EXPECT_THAT(BouncePool::Create(accounting, HostMemory(), 4096, 1),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("bounce buffers")));
  }
  EXPECT_EQ(accounting->usage().current, 0);
  for (const auto& [bytes, count] :
       {std::pair(4095, 1), std::pair(0, 1), std::pair(4096, 0)}) {
    EXPECT_THAT(BouncePool::Create(accounting, HostMemory(), bytes, count),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(BouncePoolTest, ServesWaitersInOrder) {
  const auto accounting = std::make_shared<Accounting>("host", kUnlimited);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto pool, BouncePool::Create(accounting, HostMemory(), 4096, 1));
  std::vector<int> order;
  std::byte* held = nullptr;
  for (int i = 0; i < 3; ++i) {
    pool->Acquire([&order, &held, i](std::byte* buffer) {
      order.push_back(i);
      held = buffer;
    });
  }
  EXPECT_THAT(order, testing::ElementsAre(0));
  pool->Release(held);
  EXPECT_THAT(order, testing::ElementsAre(0, 1));
  pool->Release(held);
  pool->Release(held);
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace tessera::offload
