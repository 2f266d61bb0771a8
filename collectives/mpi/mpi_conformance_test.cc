// The conformance suite as an MPI job: every rank runs all cases, and the first
// ranks of the job form the world of a case.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/mpi/mpi_engine.h"
#include "collectives/testing/conformance_suite.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

std::unique_ptr<Engine> job;
uint32_t last_group = 1000;

// Synchronises all ranks between cases.
absl::Status Meet() {
  std::vector<Rank> all;
  for (int64_t r = 0; r < job->size(); ++r) all.push_back(Rank(r));
  return job
      ->CreateSubgroup(all, ++last_group, MonotonicNanos() + 60'000'000'000)
      .status();
}

absl::Status RunOnFirst(int64_t ranks, const RankBody& body,
                        const CommunicatorOptions& options) {
  const uint32_t group = ++last_group;
  if (job->rank().value() >= ranks) return absl::OkStatus();
  std::vector<Rank> members;
  for (int64_t r = 0; r < ranks; ++r) members.push_back(Rank(r));
  auto engine =
      job->CreateSubgroup(members, group, MonotonicNanos() + 60'000'000'000);
  if (!engine.ok()) return engine.status();
  auto communicator = Communicator::Create(*std::move(engine), options);
  if (!communicator.ok()) return communicator.status();
  absl::Status status = body(**communicator);
  if (!status.ok()) (*communicator)->Abort(status.message());
  return status;
}

EngineUnderTest Mpi() {
  EngineUnderTest engine;
  engine.name = "Mpi";
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    return std::vector<absl::Status>{RunOnFirst(ranks, body, options), Meet()};
  };
  engine.most_ranks = 5;
  engine.largest_count = 20'011;
  engine.random_operations = 500;
  engine.keep_one_case_in = 4;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Job, ConformanceTest, ::testing::Values(Mpi()),
                         ::testing::PrintToStringParamName());

int RunAll() {
  auto engine = CreateMpiEngine();
  if (!engine.ok()) {
    std::printf("%s\n", engine.status().ToString().c_str());
    return 1;
  }
  job = *std::move(engine);
  const int failed = RUN_ALL_TESTS();
  if (failed == 0) {
    std::printf("rank %d passed\n", static_cast<int>(job->rank().value()));
  }
  job.reset();
  return failed;
}

}  // namespace
}  // namespace tessera::collectives

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return tessera::collectives::RunAll();
}
