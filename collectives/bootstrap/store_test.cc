#include "collectives/bootstrap/store.h"

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

TEST(JobMemberTest, DescribesMemberState) {
  EXPECT_EQ(DescribeMember({Rank(2)}), "rank 2 never joined the job");
  EXPECT_EQ(DescribeMember({Rank(1), MemberState::kPresent, "host a, pid 9"}),
            "rank 1 (host a, pid 9) has not joined");
  EXPECT_EQ(DescribeMember({Rank(4), MemberState::kLeft, "host a, pid 7"}),
            "rank 4 (host a, pid 7) has left the job");
  EXPECT_EQ(
      DescribeMember({Rank(3), MemberState::kLost, DescribePlace("b", 12)}),
      "rank 3 (host b, pid 12) is lost: its connection broke, most "
      "likely because it died");
}

TEST(AbsenceTest, ListsTheAbsent) {
  EXPECT_EQ(DescribeMissing({}), "no rank");
  EXPECT_EQ(DescribeMissing({1, {{Rank(2)}}}), "rank 2 never joined the job");
  EXPECT_EQ(DescribeMissing({2, {{Rank(2)}, {Rank(5)}}}),
            "rank 2 never joined the job and rank 5 never joined the job");
  EXPECT_EQ(DescribeMissing({2, {{Rank(2)}}}),
            "rank 2 never joined the job and 1 more rank");
  EXPECT_EQ(DescribeMissing({9, {{Rank(2)}, {Rank(3)}}}),
            "rank 2 never joined the job, rank 3 never joined the job and 7 "
            "more ranks");
}

TEST(AbsenceTest, ListsOnlyDepartedMembersIfAny) {
  EXPECT_EQ(
      DescribeMissing({30, {{Rank(7), MemberState::kLeft, ""}, {Rank(2)}}}),
      "rank 7 has left the job");
}

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(stores_, MakeInProcessStores(4));
  }
  absl::Status Gather(std::vector<Rank> members, std::string_view name,
                      std::string_view mine = "") {
    return AllGather(*stores_[0], members, name, mine, absl::Now()).status();
  }
  std::vector<std::unique_ptr<Store>> stores_;
};

auto Invalid(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST_F(StoreTest, RejectsInvalidMembers) {
  EXPECT_THAT(Gather({}, "a"), Invalid("not among the members"));
  EXPECT_THAT(Gather({Rank(1), Rank(2)}, "a"),
              Invalid("not among the members"));
  EXPECT_THAT(Gather({Rank(0), Rank(1), Rank(0)}, "a"),
              Invalid("member 0 is listed twice"));
  EXPECT_THAT(Gather({Rank(0), Rank(4)}, "a"),
              Invalid("member 4 is out of range; the job has 4 ranks"));
  EXPECT_THAT(Gather({Rank(-1), Rank(0)}, "a"), Invalid("member -1"));
}

TEST_F(StoreTest, RejectsNamesAndTextsOfInvalidLength) {
  EXPECT_THAT(Gather({Rank(0)}, ""), Invalid("has 0 bytes; use 1 to 200"));
  EXPECT_THAT(Gather({Rank(0)}, std::string(201, 'n')), Invalid("201 bytes"));
  EXPECT_THAT(Gather({Rank(0)}, "a", std::string(kMaxStoreValueBytes + 1, 'x')),
              Invalid("the text has 1048577 bytes"));
}

TEST_F(StoreTest, NamesOnlyDepartedMembersIfAny) {
  stores_[2].reset();
  EXPECT_THAT(
      Barrier(*stores_[0], "b", absl::Now() + absl::Seconds(20)),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("on rank 0"), HasSubstr("rank 2 (host "),
                     HasSubstr("has left the job"), Not(HasSubstr("rank 1")),
                     Not(HasSubstr("rank 3")))));
}

TEST_F(StoreTest, NamesMissingFirstMember) {
  RunThreads(3, [&](int i) {
    EXPECT_THAT(
        Barrier(*stores_[i + 1], "b", absl::Now() + absl::Milliseconds(50)),
        StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 (")));
  });
}

TEST_F(StoreTest, DetectsNameReusedWithOtherText) {
  TESSERA_ASSERT_OK(stores_[1]->Set("tessera/gather/n/1", "old"));
  EXPECT_THAT(
      AllGather(*stores_[1], "n", "new", absl::Now() + absl::Seconds(1)),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("on rank 1")));
}

}  // namespace

}  // namespace tessera::collectives
