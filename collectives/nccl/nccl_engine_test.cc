// Run by every rank of a job (nccl_test.sh). Skips tests that need a GPU on
// machines without one.
#include "collectives/nccl/nccl_engine.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Store> store;

int Devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

// Managed memory: accessible from the host and every GPU.
std::shared_ptr<std::byte> Managed(int64_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cudaMallocManaged(&data, static_cast<size_t>(bytes)), cudaSuccess);
  return {static_cast<std::byte*>(data), [](std::byte* p) { cudaFree(p); }};
}

NcclOptions Options(std::string name) {
  NcclOptions options;
  options.name = std::move(name);
  options.device =
      static_cast<int>(store->rank().value()) % std::max(1, Devices());
  return options;
}

#define SKIP_WITHOUT_GPU() \
  if (Devices() == 0) GTEST_SKIP() << "there is no GPU here"

TEST(NcclEngineTest, WithoutAGpuItSaysSo) {
  if (Devices() > 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_THAT(CreateNcclEngine(*store),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cudaGetDeviceCount")));
}

TEST(NcclEngineTest, RefusesOptionsThatCannotBe) {
  NcclOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(
      CreateNcclEngine(*store, options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout is 0")));
  options = {};
  options.name = "";
  EXPECT_THAT(CreateNcclEngine(*store, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the name has 0 bytes")));
  EXPECT_THAT(
      CreateEngine("nccl", {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a store")));
}

TEST(NcclEngineTest, Collectives) {
  SKIP_WITHOUT_GPU();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine,
                               CreateNcclEngine(*store, Options("all")));
  CheckCollectives(*engine, {.allocate = Managed});
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto memory, engine->AllocateShared(100));
  EXPECT_EQ(memory->bytes().size(), 100u);
}

TEST(NcclEngineTest, CheckedCallsGiveTheSame) {
  SKIP_WITHOUT_GPU();
  NcclOptions options = Options("checked");
  options.check_signatures = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine,
                               CreateNcclEngine(*store, options));
  CheckCollectives(*engine,
                   {.counts = {0, 7}, .large_counts = {}, .allocate = Managed});
}

TEST(NcclEngineTest, Subgroups) {
  SKIP_WITHOUT_GPU();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine,
                               CreateNcclEngine(*store, Options("parts")));
  std::vector<Rank> members;
  for (int64_t r = engine->size() - 1; r >= 0; --r) members.push_back(Rank(r));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto part,
      engine->CreateSubgroup(members, 3, MonotonicNanos() + 60'000'000'000));
  CheckCollectives(*part,
                   {.counts = {7}, .large_counts = {}, .allocate = Managed});
}

TEST(NcclEngineTest, ALateRankIsMissedAtTheDeadline) {
  SKIP_WITHOUT_GPU();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine,
                               CreateNcclEngine(*store, Options("late")));
  // NCCL connects at the first call, which may take longer than the deadline.
  ASSERT_THAT(Caller(*engine).Run(BarrierOf()), IsOk());
  if (engine->rank() == Rank(engine->size() - 1)) return;
  const int64_t begin = MonotonicNanos();
  EXPECT_THAT(Caller(*engine, absl::Seconds(1)).Run(BarrierOf()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank")));
  EXPECT_LT(MonotonicNanos() - begin, 20'000'000'000);
}

}  // namespace
}  // namespace tessera::collectives

int main(int argc, char** argv) {
  using namespace tessera::collectives;
  ::testing::InitGoogleTest(&argc, argv);
  auto job = JoinJob(ProcessEnvironment());
  if (!job.ok()) {
    printf("%s\n", job.status().ToString().c_str());
    return 1;
  }
  store = std::move(job->store);
  const int failed = RUN_ALL_TESTS();
  // Rank 0's process owns the store: no rank leaves before all are done.
  const auto all_done =
      Barrier(*store, "done", absl::Now() + absl::Seconds(120));
  store.reset();
  return failed != 0 || !all_done.ok();
}
