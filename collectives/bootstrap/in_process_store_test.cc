#include "collectives/bootstrap/in_process_store.h"

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "collectives/bootstrap/testing/store_suite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

class InProcessStoreTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(stores_, MakeInProcessStores(GetParam()));
  }
  Stores stores_;
};

TEST_P(InProcessStoreTest, SetsAndGets) { CheckSetAndGet(stores_); }
TEST_P(InProcessStoreTest, Gathers) { CheckAllGather(stores_, GetParam()); }
TEST_P(InProcessStoreTest, KeepsItsDeadline) { CheckDeadline(stores_); }
TEST_P(InProcessStoreTest, ServesManyThreads) { CheckThreads(stores_); }

INSTANTIATE_TEST_SUITE_P(Sizes, InProcessStoreTest,
                         ::testing::Values(1, 2, 3, 4, 5, 7, 8, 9));

TEST(InProcessStoresTest, NameDepartedRank) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Stores stores, MakeInProcessStores(5));
  CheckLeaving(stores);
}

TEST(InProcessStoresTest, RejectInvalidSize) {
  EXPECT_THAT(MakeInProcessStores(0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the job has 0 ranks; use 1 to")));
}

TEST(InProcessStoresTest, RejectUseInForkedChild) {
  TESSERA_ASSERT_OK_AND_ASSIGN(Stores stores, MakeInProcessStores(2));
  const pid_t child = StartProcess([&] {
    const absl::Status status = stores[0]->Set("a", "b");
    return absl::IsFailedPrecondition(status) &&
                   status.message().find("after fork") != std::string::npos
               ? 0
               : 1;
  });
  EXPECT_EQ(WaitForProcess(child), 0);
  TESSERA_EXPECT_OK(stores[1]->Set("a", "b"));
}

}  // namespace
}  // namespace tessera::collectives
