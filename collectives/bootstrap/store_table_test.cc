#include "collectives/bootstrap/store_table.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Records the result of a wait.
struct Getter {
  std::optional<absl::StatusOr<std::string>> value;
  StoreTable::GetDone Done() {
    return [this](absl::StatusOr<std::string> got) { value = std::move(got); };
  }
};
struct Waiter {
  std::optional<absl::StatusOr<MissingMembers>> absence;
  StoreTable::AwaitDone Done() {
    return [this](absl::StatusOr<MissingMembers> got) {
      absence = std::move(got);
    };
  }
};

TEST(StoreTableTest, ServesWaitsInOrderUntilReadsAreExhausted) {
  StoreTable table(2);
  Getter a, b, c;
  table.Get(Store::kAnyRank, "k", a.Done());
  table.Get(Store::kAnyRank, "k", b.Done());
  const auto ticket = table.Get(Store::kAnyRank, "k", c.Done());
  TESSERA_EXPECT_OK(table.Set(2, "k", "v"));
  EXPECT_THAT(*a.value, IsOkAndHolds(std::string("v")));
  EXPECT_THAT(*b.value, IsOkAndHolds(std::string("v")));
  EXPECT_FALSE(c.value.has_value());
  EXPECT_FALSE(table.HasUnread());
  TESSERA_EXPECT_OK(table.Set(2, "k", "w"));  // The key can be set again.
  EXPECT_THAT(*c.value, IsOkAndHolds(std::string("w")));
  EXPECT_TRUE(table.HasUnread());
  EXPECT_FALSE(table.Cancel(ticket));
}

TEST(StoreTableTest, CancelledWaitsAreNotCalled) {
  StoreTable table(2);
  Getter getter;
  Waiter waiter;
  const auto get = table.Get(Store::kAnyRank, "k/1", getter.Done());
  const auto await =
      table.AwaitAll("k/", std::vector<Rank>{Rank(1)}, waiter.Done());
  EXPECT_TRUE(table.Cancel(get));
  EXPECT_TRUE(table.Cancel(await));
  EXPECT_FALSE(table.Cancel(get));
  TESSERA_EXPECT_OK(table.Set(0, "k/1", "v"));
  EXPECT_FALSE(getter.value.has_value());
  EXPECT_FALSE(waiter.absence.has_value());
}

TEST(StoreTableTest, AwaitAllEndsWithTheLastKey) {
  StoreTable table(12);
  Waiter waiter;
  const std::vector<Rank> ranks = {Rank(11), Rank(1)};
  table.AwaitAll("k/", ranks, waiter.Done());
  for (const char* key : {"k/1", "k/011", "k/", "k/1/11", "k/10", "l/11"}) {
    TESSERA_EXPECT_OK(table.Set(0, key, ""));
  }
  EXPECT_FALSE(waiter.absence.has_value());
  TESSERA_EXPECT_OK(table.Set(0, "k/11", ""));
  EXPECT_THAT(*waiter.absence, IsOkAndHolds(MissingMembers()));
}

TEST(StoreTableTest, AwaitAllWithoutAPrefixWaitsForSeats) {
  StoreTable table(3);
  Waiter both, gone;
  const std::vector<Rank> ranks = {Rank(0), Rank(2)};
  table.AwaitAll("", ranks, both.Done());
  TESSERA_EXPECT_OK(table.TakeMember(Rank(2), "here"));
  EXPECT_FALSE(both.absence.has_value());
  TESSERA_EXPECT_OK(table.TakeMember(Rank(0), "there"));
  EXPECT_THAT(*both.absence, IsOkAndHolds(MissingMembers()));
  table.LeaveSeat(Rank(2), MemberState::kLost);
  table.AwaitAll("", ranks, gone.Done());
  const MissingMembers expected = {1, {{Rank(2), MemberState::kLost, "here"}}};
  EXPECT_THAT(*gone.absence, IsOkAndHolds(expected));
}

TEST(StoreTableTest, LostRankFailsOnlyWaitsForIt) {
  StoreTable table(3);
  for (int i = 0; i < 3; ++i) {
    TESSERA_EXPECT_OK(table.TakeMember(Rank(i), absl::StrCat("place ", i)));
  }
  Getter of_lost, of_other, of_any;
  Waiter waiter;
  table.Get(Rank(1), "a", of_lost.Done());
  table.Get(Rank(2), "a", of_other.Done());
  table.Get(Store::kAnyRank, "a", of_any.Done());
  table.AwaitAll("k/", std::vector<Rank>{Rank(1), Rank(2)}, waiter.Done());
  table.LeaveSeat(Rank(1), MemberState::kLost);
  EXPECT_THAT(*of_lost.value,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 1 (place 1) is lost"),
                             HasSubstr("has not set \"a\""))));
  EXPECT_FALSE(of_other.value.has_value());
  EXPECT_FALSE(of_any.value.has_value());
  EXPECT_EQ((*waiter.absence)->count, 2);
  EXPECT_EQ((*waiter.absence)->named[0].rank, Rank(1));
  EXPECT_TRUE((*waiter.absence)->AnyGone());
}

TEST(StoreTableTest, RejectsRankThatJoinedBefore) {
  StoreTable table(2);
  TESSERA_EXPECT_OK(table.TakeMember(Rank(1), "a"));
  EXPECT_THAT(table.TakeMember(Rank(1), "b"),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("rank 1 has already joined: rank 1 (a)")));
  EXPECT_EQ(table.member(Rank(1)).where, "a");
  EXPECT_THAT(table.TakeMember(Rank(2), "c"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 2 is out of range; the job has 2")));
  table.LeaveSeat(Rank(1), MemberState::kLeft);
  EXPECT_THAT(table.TakeMember(Rank(1), "b"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("left")));
}

TEST(StoreTableTest, EveryTotalIsBounded) {
  StoreTable table(1, {.entries = 2, .bytes = 10, .waits = 2});
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted);
  TESSERA_EXPECT_OK(table.Set(0, "a", "1234"));
  EXPECT_THAT(table.Set(0, "b", "12345"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1 of 2 entries and 5 of 10 bytes")));
  TESSERA_EXPECT_OK(table.Set(1, "b", ""));
  EXPECT_THAT(table.Set(0, "c", ""), full);
  Getter read;
  table.Get(Store::kAnyRank, "b", read.Done());
  TESSERA_EXPECT_OK(table.Set(0, "0", "1234"));
  EXPECT_THAT(table.Set(0, "c", ""), full);
  table.Erase("", std::vector<Rank>{Rank(0)});
  TESSERA_EXPECT_OK(table.Set(0, "c", "1234"));
  Getter a, b;
  Waiter c;
  table.Get(Store::kAnyRank, "x", a.Done());
  const auto ticket = table.AwaitAll("y", std::vector<Rank>{Rank(0)}, c.Done());
  table.Get(Store::kAnyRank, "x", b.Done());
  EXPECT_THAT(*b.value, full);
  EXPECT_TRUE(table.Cancel(ticket));
  table.Get(Store::kAnyRank, "x", read.Done());
  EXPECT_FALSE(a.value.has_value());
}

}  // namespace
}  // namespace tessera::collectives
