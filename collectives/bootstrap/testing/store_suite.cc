#include "collectives/bootstrap/testing/store_suite.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

std::string RandomText(std::mt19937_64& random) {
  const size_t bound = random() % 8 == 0 ? 50'000 : 40;
  std::string text(random() % bound, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

void CheckBounds(Store& store) {
  const auto invalid = [](std::string_view text) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(std::string(text)));
  };
  const std::string long_key(kMaxStoreKeyBytes + 1, 'k');
  EXPECT_THAT(store.Set("", "v"), invalid("has 0 bytes; use 1 to 256"));
  EXPECT_THAT(store.Set(long_key, "v"), invalid("has 257 bytes"));
  EXPECT_THAT(store.Get(long_key, absl::Now()), invalid("has 257 bytes"));
  EXPECT_THAT(store.Set("bounds", std::string(kMaxStoreValueBytes + 1, 'v')),
              invalid("has 1048577 bytes; use at most 1048576"));
  EXPECT_THAT(store.SetFor(-1, "bounds", "v", Soon()), invalid("for -1 reads"));
  EXPECT_THAT(store.GetFrom(Rank(store.size()), "bounds", absl::Now()),
              invalid("is out of range; the job has"));
  EXPECT_THAT(
      store.AwaitAll("p", std::vector<Rank>{Rank(store.size())}, absl::Now()),
      invalid("is out of range; the job has"));
  // The rejected calls had no effect.
  EXPECT_THAT(store.Get("bounds", absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace

void CheckSetAndGet(Stores& stores) {
  Store& first = *stores.front();
  Store& last = *stores.back();
  RunThreads(static_cast<int>(stores.size()), [&](int i) {
    if (i == 0) {
      absl::SleepFor(absl::Milliseconds(20));  // Lets some readers wait.
      TESSERA_EXPECT_OK(last.Set("key", std::string("va\0lue", 6)));
    }
    EXPECT_THAT(stores[i]->Get("key", Soon()),
                IsOkAndHolds(std::string("va\0lue", 6)));
  });
  TESSERA_EXPECT_OK(first.Set("key", std::string("va\0lue", 6)));
  EXPECT_THAT(first.Set("key", "other"),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("\"key\""), HasSubstr("set once"))));
  EXPECT_THAT(last.Get("key", absl::InfinitePast()),
              IsOkAndHolds(std::string("va\0lue", 6)));

  TESSERA_EXPECT_OK(last.SetFor(2, "twice", "2", Soon()));
  EXPECT_THAT(first.Get("twice", Soon()), IsOkAndHolds(std::string("2")));
  EXPECT_THAT(last.Get("twice", Soon()), IsOkAndHolds(std::string("2")));
  EXPECT_THAT(last.Get("twice", absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));

  const std::string large(kMaxStoreValueBytes, 'x');
  TESSERA_EXPECT_OK(first.Set("large/0", large));
  EXPECT_THAT(last.Get("large/0", Soon()), IsOkAndHolds(large));
  TESSERA_EXPECT_OK(last.Erase("large/", std::vector<Rank>{Rank(0)}, Soon()));
  EXPECT_THAT(first.Get("large/0", absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  CheckBounds(first);
  CheckBounds(last);
}

void CheckAllGather(Stores& stores, int seed) {
  const int size = static_cast<int>(stores.size());
  std::mt19937_64 random(seed);
  std::vector<Rank> order(size);
  for (int i = 0; i < size; ++i) order[i] = Rank(i);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> texts(size);
    for (std::string& text : texts) text = RandomText(random);
    RunThreads(size, [&](int i) {
      EXPECT_THAT(
          AllGather(*stores[i], absl::StrCat("all ", round), texts[i], Soon()),
          IsOkAndHolds(texts));
      TESSERA_EXPECT_OK(Barrier(*stores[i], absl::StrCat(round), Soon()));
    });
    std::shuffle(order.begin(), order.end(), random);
    const std::vector<Rank> members(order.begin(),
                                    order.begin() + 1 + random() % size);
    std::vector<std::string> expected;
    for (const Rank member : members) {
      expected.push_back(texts[member.value()]);
    }
    RunThreads(static_cast<int>(members.size()), [&](int i) {
      const int64_t rank = members[i].value();
      EXPECT_THAT(AllGather(*stores[rank], members,
                            absl::StrCat("some ", round), texts[rank], Soon()),
                  IsOkAndHolds(expected));
    });
  }
  // Two texts that together exceed the size of one value, with empty texts
  // between them.
  std::vector<std::string> large(size);
  large.front().assign(kMaxStoreValueBytes, 'x');
  large.back().assign(kMaxStoreValueBytes, 'y');
  RunThreads(size, [&](int i) {
    const auto all = AllGather(*stores[i], "large", large[i], Soon());
    EXPECT_TRUE(all.ok() && *all == large) << all.status();
  });
}

void CheckDeadline(Stores& stores) {
  const int size = static_cast<int>(stores.size());
  const absl::Time start = absl::Now();
  EXPECT_THAT(stores.back()->Get("never", start + absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
  if (size < 2) return;
  // The last rank does not take part.
  const absl::Time deadline = absl::Now() + absl::Milliseconds(150);
  RunThreads(size - 1, [&](int i) {
    EXPECT_THAT(
        Barrier(*stores[i], "late", deadline),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr(absl::StrCat("rank ", size - 1, " (host ")),
                       HasSubstr("has not joined"), HasSubstr("pid "))));
  });
  EXPECT_GE(absl::Now(), deadline);
  EXPECT_LT(absl::Now(), deadline + absl::Seconds(5));
  // The late rank gets the result at once.
  EXPECT_THAT(Barrier(*stores.back(), "late", Soon()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("rank ", size - 1))));
}

void CheckLeaving(Stores& stores) {
  const int size = static_cast<int>(stores.size());
  ASSERT_GE(size, 3);
  const std::string last = absl::StrCat("rank ", size - 1, " (host ");
  TESSERA_ASSERT_OK(stores.back()->Set("legacy", "1"));
  const absl::Time start = absl::Now();
  RunThreads(size, [&](int i) {
    if (i == size - 1) {
      absl::SleepFor(absl::Milliseconds(50));
      stores.back().reset();
    } else if (i == 1) {
      EXPECT_THAT(stores[i]->GetFrom(Rank(size - 1), "never set", Soon()),
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr(last), HasSubstr("has left"))));
    } else if (i == 0) {
      const std::vector<Rank> both = {Rank(0), Rank(size - 1)};
      EXPECT_THAT(AllGather(*stores[0], both, "with the last", "", Soon()),
                  StatusIs(absl::StatusCode::kUnavailable,
                           AllOf(HasSubstr(last), HasSubstr("has left"))));
    }
  });
  RunThreads(size - 1, [&](int i) {
    EXPECT_THAT(Barrier(*stores[i], "without the last", Soon()),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr(last)));
    EXPECT_THAT(stores[i]->GetFrom(Rank(size - 1), "legacy", Soon()),
                IsOkAndHolds(std::string("1")));
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

void CheckThreads(Stores& stores) {
  constexpr int kThreads = 4;
  const int size = static_cast<int>(stores.size());
  RunThreads(size * kThreads, [&](int i) {
    Store& store = *stores[i / kThreads];
    for (int round = 0; round < 10; ++round) {
      const std::string mine = absl::StrCat("threads/", round, "/");
      TESSERA_EXPECT_OK(store.Set(absl::StrCat(mine, i), absl::StrCat(i)));
      const int other = (i * 7 + 3) % (size * kThreads);
      EXPECT_THAT(store.Get(absl::StrCat(mine, other), Soon()),
                  IsOkAndHolds(absl::StrCat(other)));
    }
  });
}

}  // namespace tessera::collectives
