#include "offload/tier/pinned_arena.h"

#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPage = 4096;

Pinning Refusing() {
  return {[](void*, size_t) { return absl::PermissionDeniedError("no"); },
          [](void*, size_t) { FAIL() << "unpinned what was not pinned"; }};
}

TEST(PinnedArenaTest, GivesExactSizes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto arena,
                               PinnedArena::Create({.cap = 4 * kPage}));
  EXPECT_EQ(arena->cap(), 4 * kPage);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer a, Buffer::Allocate(arena, 8193));
  EXPECT_EQ(arena->used_bytes(), 8193);
  // Aligning to 64 skips 63 bytes, which stay free.
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer b, Buffer::Allocate(arena, 8128));
  EXPECT_EQ(arena->used_bytes(), 8193 + 8128);
  std::memset(a.data(), 1, a.size());
  std::memset(b.data(), 2, b.size());
  EXPECT_EQ(a.data()[8192], std::byte{1});
  EXPECT_THAT(Buffer::Allocate(arena, 64),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("no 64 bytes in a row"),
                             HasSubstr("cap 16384 bytes, used 16321"))));
  a = Buffer();
  EXPECT_EQ(arena->used_bytes(), 8128);
  TESSERA_EXPECT_OK(Buffer::Allocate(arena, 8192));
}

TEST(PinnedArenaTest, FallsBackWithReasonIfNotPinned) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto arena, PinnedArena::Create({.cap = 1, .pinning = Refusing()}));
  EXPECT_FALSE(arena->pinned());
  EXPECT_EQ(arena->kind(), MemoryKind::kHost);
  EXPECT_THAT(arena->pin_status(),
              StatusIs(absl::StatusCode::kPermissionDenied, "no"));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer all, Buffer::Allocate(arena, kPage));
  std::memset(all.data(), 1, all.size());
}

TEST(PinnedArenaTest, NamesMemlockLimit) {
  rlimit old = {};
  getrlimit(RLIMIT_MEMLOCK, &old);
  rlimit none = {0, old.rlim_max};
  setrlimit(RLIMIT_MEMLOCK, &none);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto arena,
                               PinnedArena::Create({.cap = 64 * kPage}));
  setrlimit(RLIMIT_MEMLOCK, &old);
  // The superuser may exceed the limit.
  if (!arena->pinned()) {
    EXPECT_THAT(std::string(arena->pin_status().message()),
                AllOf(HasSubstr("mlock of 262144 bytes"),
                      HasSubstr("RLIMIT_MEMLOCK is 0 bytes")));
  } else {
    EXPECT_EQ(arena->kind(), MemoryKind::kPinnedHost);
  }
  TESSERA_EXPECT_OK(Buffer::Allocate(arena, 64 * kPage));
}

TEST(PinnedArenaTest, UnpinsPinnedMemory) {
  std::vector<std::string> calls;
  Pinning pinning = {[&calls](void*, size_t bytes) {
                       calls.push_back("pin " + std::to_string(bytes));
                       return absl::OkStatus();
                     },
                     [&calls](void*, size_t bytes) {
                       calls.push_back("unpin " + std::to_string(bytes));
                     }};
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto arena,
        PinnedArena::Create({.cap = 5000, .pinning = std::move(pinning)}));
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer b, Buffer::Allocate(arena, 10));
    arena.reset();  // The buffer keeps it alive.
    EXPECT_THAT(calls, testing::ElementsAre("pin 8192"));
  }
  EXPECT_THAT(calls, testing::ElementsAre("pin 8192", "unpin 8192"));
}

TEST(PinnedArenaTest, RejectsBadCapsAndAlignments) {
  for (int64_t cap : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    EXPECT_THAT(PinnedArena::Create({.cap = cap}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cap")));
  }
  EXPECT_THAT(
      PinnedArena::Create({.cap = INT64_MAX / 4, .pinning = Refusing()}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("mapped")));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto arena, PinnedArena::Create({.cap = kPage}));
  EXPECT_THAT(Buffer::Allocate(arena, 1, 2 * kPage),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a page at most")));
  EXPECT_THAT(Buffer::Allocate(arena, SIZE_MAX / 2),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(PinnedArenaTest, ThreadsGetDisjointBlocks) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto arena,
                               PinnedArena::Create({.cap = 16 * kPage}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      std::mt19937_64 random(t);
      std::vector<Buffer> held(6);
      for (int i = 0; i < 500; ++i) {
        Buffer& slot = held[random() % held.size()];
        for (size_t j = 0; j < slot.size(); ++j) {
          ASSERT_EQ(slot.data()[j], std::byte(t));
        }
        auto got = Buffer::Allocate(arena, random() % 3000);
        if (!got.ok()) continue;
        slot = *std::move(got);
        if (slot.size() != 0) std::memset(slot.data(), t, slot.size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->used_bytes(), 0);
  EXPECT_EQ(arena->largest_free(), arena->cap());
}

}  // namespace
}  // namespace tessera::offload
