// Run by every rank of an MPI job (mpi_test.sh) with the name of one fault. MPI
// does not exit cleanly with broken groups, so the script checks the ranks'
// output.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

std::string_view fault;

std::unique_ptr<Engine> World(bool check_signatures = false) {
  MpiOptions options;
  options.check_signatures = check_signatures;
  auto engine = CreateMpiEngine(options);
  EXPECT_THAT(engine, IsOk());
  return *std::move(engine);
}

void LateMember(Engine& engine) {
  std::vector<Rank> members;
  for (int64_t r = 0; r < engine.size(); ++r) members.push_back(Rank(r));
  if (engine.rank() == Rank(engine.size() - 1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    return;
  }
  const int64_t begin = MonotonicNanos();
  EXPECT_THAT(engine.CreateSubgroup(members, 77, begin + 200'000'000),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("creating a subgroup")));
  EXPECT_LT(MonotonicNanos() - begin, 2'000'000'000);
}

// The last rank exits without notice.
void LostRank(Engine& engine) {
  ASSERT_THAT(Caller(engine).Run(BarrierOf()), IsOk());
  if (engine.rank() == Rank(engine.size() - 1)) _exit(0);
  const int64_t begin = MonotonicNanos();
  EXPECT_THAT(Caller(engine, absl::Milliseconds(500)).Run(BarrierOf()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank")));
  EXPECT_LT(MonotonicNanos() - begin, 3'000'000'000);
}

TEST(MpiFaultTest, Fault) {
  auto world = World(fault == "mismatch" || fault == "message_mismatch");
  if (fault == "late") CheckLateRank(*world, /*collective=*/true);
  if (fault == "message_late") CheckLateRank(*world, /*collective=*/false);
  if (fault == "abort") CheckAbort(*world, true, /*reaches_peers=*/true);
  if (fault == "message_abort") {
    CheckAbort(*world, false, /*reaches_peers=*/true);
  }
  if (fault == "mismatch") CheckMismatch(*world, /*collective=*/true);
  if (fault == "message_mismatch") CheckMismatch(*world, /*collective=*/false);
  if (fault == "late_member") LateMember(*world);
  if (fault == "lost") LostRank(*world);
  // The other ranks finish later than this one.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
}

TEST(MpiFaultTest, RejectsSingleThreadedMpi) {
  if (fault != "single") GTEST_SKIP();
  EXPECT_THAT(CreateMpiEngine(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("MPI_THREAD_MULTIPLE")));
  MPI_Finalize();
  EXPECT_THAT(CreateMpiEngine(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("MPI_Finalize")));
}

}  // namespace
}  // namespace tessera::collectives

int main(int argc, char** argv) {
  using tessera::collectives::fault;
  ::testing::InitGoogleTest(&argc, argv);
  fault = argc > 1 ? argv[1] : "";
  int rank = 0, level = 0;
  if (fault == "single") {
    ::testing::GTEST_FLAG(filter) = "*Refused";
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
  } else {
    ::testing::GTEST_FLAG(filter) = "*.Fault";
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int failed = RUN_ALL_TESTS();
  if (failed == 0) std::printf("rank %d passed\n", rank);
  std::fflush(stdout);
  _exit(failed);
}
