#include "collectives/engine/operation_context.h"

#include <cstring>
#include <set>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

TEST(ScratchTest, AllocatesDisjointAlignedMemory) {
  Scratch scratch;
  std::vector<std::span<std::byte>> given;
  for (int64_t bytes : {0, 1, 63, 64, 65, 100000, 7, 1 << 20}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(auto memory, scratch.Allocate(bytes));
    ASSERT_EQ(static_cast<int64_t>(memory.size()), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0u);
    std::memset(memory.data(), static_cast<int>(given.size()), memory.size());
    given.push_back(memory);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    for (std::byte b : given[i]) ASSERT_EQ(b, static_cast<std::byte>(i));
  }
}

TEST(ScratchTest, KeepsMemoryForTheNextOperation) {
  Scratch scratch(/*kept_bytes=*/1 << 20);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto first, scratch.Allocate(1 << 19));
  const int64_t held = scratch.held_bytes();
  scratch.Reset();
  EXPECT_EQ(scratch.held_bytes(), held);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto second, scratch.Allocate(1 << 19));
  EXPECT_EQ(first.data(), second.data());
  EXPECT_EQ(scratch.held_bytes(), held);
}

// Repeats a few bytes, then a large block: the large block is reused.
TEST(ScratchTest, DoesNotGrowForRepeatedOperations) {
  Scratch scratch;
  int64_t held = 0;
  for (int operation = 0; operation < 4; ++operation) {
    for (const int64_t bytes : {200, 64, 3 << 20, 500}) {
      TESSERA_ASSERT_OK(scratch.Allocate(bytes).status());
    }
    if (operation == 0) held = scratch.held_bytes();
    EXPECT_EQ(scratch.held_bytes(), held);
    scratch.Reset();
  }
  EXPECT_LT(held, 4 << 20);
}

TEST(ScratchTest, FreesMemoryAboveBound) {
  Scratch scratch(/*kept_bytes=*/1 << 20);
  ASSERT_THAT(scratch.Allocate(4 << 20).status(), IsOk());
  ASSERT_THAT(scratch.Allocate(1000).status(), IsOk());
  scratch.Reset();
  EXPECT_LE(scratch.held_bytes(), 1 << 20);
  EXPECT_GT(scratch.held_bytes(), 0);
}

TEST(ScratchTest, RejectsInvalidSizes) {
  Scratch scratch;
  EXPECT_THAT(scratch.Allocate(-1), StatusIs(absl::StatusCode::kInvalidArgument,
                                             ::testing::HasSubstr("-1")));
  EXPECT_THAT(scratch.Allocate(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(scratch.Allocate(10).status(), IsOk());
}

}  // namespace

}  // namespace tessera::collectives
