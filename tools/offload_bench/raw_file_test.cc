#include "tools/offload_bench/raw_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload_bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// All movers that this machine supports.
std::vector<std::unique_ptr<RawMover>> Movers(int depth) {
  std::vector<std::unique_ptr<RawMover>> movers;
  movers.push_back(MakeThreadMover(depth));
  if (auto ring = MakeRingMover(depth); ring.ok()) {
    movers.push_back(*std::move(ring));
  }
  return movers;
}

UniqueFd Scratch() {
  return UniqueFd(open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600));
}

TEST(RawMoverTest, MovesEveryByteInAnyPieces) {
  std::vector<std::byte> data(100'003);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::byte>(i * 7 % 251);
  }
  for (const int depth : {1, 3, 64}) {
    for (const int64_t piece :
         {int64_t{100}, int64_t{4096}, int64_t{200'000}}) {
      for (const auto& mover : Movers(depth)) {
        const UniqueFd fd = Scratch();
        const auto bytes = static_cast<int64_t>(data.size());
        TESSERA_ASSERT_OK(
            mover->Move({fd.get(), true, data.data(), bytes, piece}));
        std::vector<std::byte> back(data.size());
        TESSERA_ASSERT_OK(
            mover->Move({fd.get(), false, back.data(), bytes, piece}));
        EXPECT_TRUE(back == data) << mover->name() << " " << depth;
      }
    }
  }
}

TEST(RawMoverTest, SaysWhereItWentWrongAndWorksAgain) {
  for (const auto& mover : Movers(4)) {
    std::vector<std::byte> data(10'000);
    EXPECT_THAT(mover->Move({-1, true, data.data(), 10'000, 1000}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("raw write of 1000 bytes at offset ")))
        << mover->name();
    const UniqueFd fd = Scratch();
    TESSERA_ASSERT_OK(mover->Move({fd.get(), true, data.data(), 2500, 1000}));
    // The file ends in the third piece.
    EXPECT_THAT(
        mover->Move({fd.get(), false, data.data(), 3000, 1000}),
        StatusIs(absl::StatusCode::kUnavailable,
                 HasSubstr("raw read of 1000 bytes at offset 2000 moved only "
                           "500 bytes")));
    TESSERA_EXPECT_OK(mover->Move({fd.get(), false, data.data(), 2500, 1000}));
  }
}

TEST(RawFileTest, WritesAndReadsWithEitherEngineAndLeavesNothing) {
  const std::string directory = testing::TempDir() + "/raw";
  std::filesystem::create_directory(directory);
  for (const bool uring : {true, false}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto raw,
                                 RawFile::Create({.directory = directory,
                                                  .bytes = 5 * 4096,
                                                  .piece_bytes = 8192,
                                                  .depth = 4,
                                                  .uring = uring}));
    TESSERA_EXPECT_OK(raw->Read());
    TESSERA_EXPECT_OK(raw->Write());
    EXPECT_TRUE(std::filesystem::is_empty(directory));
    EXPECT_EQ(raw->direct(), raw->why_not_direct().empty());
    if (!uring) {
      EXPECT_EQ(raw->engine(), "threads");
    }
  }
}

TEST(RawFileTest, RefusesWhereThereIsNoDirectoryOrNoRoom) {
  EXPECT_THAT(
      RawFile::Create(
          {.directory = "/no/such", .bytes = 4096, .piece_bytes = 4096}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such")));
  TESSERA_EXPECT_OK(CheckFreeSpace(testing::TempDir(), 4096));
  EXPECT_THAT(CheckFreeSpace(testing::TempDir(), int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("free and 1EiB are needed"),
                             HasSubstr("--dir"))));
  EXPECT_THAT(CheckFreeSpace("/no/such", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such")));
}

}  // namespace
}  // namespace tessera::offload_bench
