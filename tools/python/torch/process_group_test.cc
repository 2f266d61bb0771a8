#include "tools/python/torch/process_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "gtest/gtest.h"

namespace tessera::torch_backend {
namespace {

using ::testing::HasSubstr;

TEST(ForkGuardTest, DetectsForks) {
  WatchForks();
  const ForkGuard guard;
  EXPECT_THAT(guard.Check(), IsOk());
  auto freed = std::make_unique<int>(1);
  guard.Free(freed);
  EXPECT_EQ(freed, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const ForkGuard own;
    const bool right = guard.IsForked() && !own.IsForked() &&
                       own.Check().ok() &&
                       absl::IsFailedPrecondition(guard.Check());
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(guard.IsForked());
}

TEST(JoinGroupTest, LaterGroupsLieInTheWorld) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto stores,
                               collectives::MakeInProcessStores(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto world, JoinGroup({.name = "world", .members = {0}},
                                  [&] { return std::move(stores.front()); }));
  EXPECT_EQ(world->size(), 1);
  // The group does not need the store.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto group, JoinGroup({.name = "tp", .members = {0}},
                                  []() -> std::unique_ptr<collectives::Store> {
                                    ADD_FAILURE() << "the ranks need not meet";
                                    return nullptr;
                                  }));
  EXPECT_EQ(group->size(), 1);
  EXPECT_THAT(
      JoinGroup({.name = "twice", .members = {0, 0}},
                []() -> std::unique_ptr<collectives::Store> { return nullptr; })
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0")));
}

}  // namespace
}  // namespace tessera::torch_backend
