#include "collectives/groups/agreement.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);

// The length differs by rank; some are empty.
std::string TextOf(int64_t rank) {
  return std::string(static_cast<size_t>(rank * 700), static_cast<char>(rank));
}

TEST(AgreementTest, RanksReceiveTextsOfAll) {
  for (const int64_t ranks : {1, 2, 3, 5}) {
    EXPECT_THAT(
        RunRanks(ranks,
                 [&](Communicator& group) -> absl::Status {
                   TESSERA_ASSIGN_OR_RETURN(
                       const std::vector<std::string> texts,
                       ExchangeTexts(group, TextOf(group.rank().value()),
                                     kTimeout));
                   for (int64_t r = 0; r < ranks; ++r) {
                     EXPECT_EQ(texts[static_cast<size_t>(r)], TextOf(r));
                   }
                   return absl::OkStatus();
                 }),
        Each(IsOk()));
  }
}

TEST(AgreementTest, RanksReceiveFirstErrorAndCountOfOthers) {
  const auto run = [](int64_t failing) {
    std::vector<absl::Status> agreed(4);
    EXPECT_THAT(
        RunRanks(4,
                 [&](Communicator& group) {
                   const int64_t rank = group.rank().value();
                   agreed[static_cast<size_t>(rank)] = AgreeOnStatus(
                       group,
                       rank < 4 - failing
                           ? absl::OkStatus()
                           : absl::DataLossError(absl::StrCat(
                                 "file ", rank, std::string(5000, 'x'))),
                       kTimeout);
                   return absl::OkStatus();
                 }),
        Each(IsOk()));
    return agreed;
  };
  EXPECT_THAT(run(0), Each(IsOk()));
  EXPECT_THAT(run(1), Each(StatusIs(absl::StatusCode::kDataLoss,
                                    HasSubstr("rank 3 of world: file 3xxx"))));
  EXPECT_THAT(run(3), Each(StatusIs(absl::StatusCode::kDataLoss,
                                    HasSubstr("(and 2 more ranks)"))));
  for (const absl::Status& status : run(2)) {
    EXPECT_LT(status.message().size(), 2100u);
  }
}

TEST(AgreementTest, FirstErrorIsOfLowestRank) {
  EXPECT_THAT(FirstError("dp", {}), IsOk());
  EXPECT_THAT(FirstError("dp", {absl::OkStatus(), absl::OkStatus()}), IsOk());
  EXPECT_EQ(FirstError("dp", {absl::OkStatus(), absl::NotFoundError("a"),
                              absl::DataLossError("b")}),
            absl::NotFoundError("rank 1 of dp: a (and 1 more ranks)"));
}

}  // namespace
}  // namespace tessera::collectives
