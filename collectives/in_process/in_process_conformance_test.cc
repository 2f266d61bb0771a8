// The conformance suite on threads, with buffers that every rank can access and
// with staged buffers.
#include <thread>
#include <utility>

#include "collectives/in_process/in_process.h"
#include "collectives/testing/conformance_suite.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

// ThreadSanitizer makes threads so slow that only a sample is run.
EngineUnderTest Sampled(EngineUnderTest engine) {
#if defined(__SANITIZE_THREAD__)
  engine.most_ranks = 4;
  engine.keep_one_case_in *= 10;
  engine.largest_count = 10'007;
  engine.random_operations /= 5;
#endif
  return engine;
}

EngineUnderTest Staged() {
  EngineUnderTest engine;
  engine.name = "Staged";
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    InProcessOptions in_process;
    in_process.reach_buffers = false;
    // Small pieces, so that every operation needs several.
    in_process.tuning.piece_bytes = 4096;
    in_process.tuning.pieces = 3;
    in_process.tuning.channel_bytes = 1024;
    in_process.tuning.one_shot_bytes = 1000;
    return RunRanksOn(CreateInProcessEngines(ranks, in_process), body, options);
  };
  engine.keep_one_case_in = 3;
  engine.largest_count = 20'011;
  return Sampled(engine);
}

EngineUnderTest Reached() {
  EngineUnderTest engine;
  engine.name = "Reached";
  engine.run = RunRanks;
  return Sampled(engine);
}

INSTANTIATE_TEST_SUITE_P(InProcess, ConformanceTest,
                         ::testing::Values(Reached(), Staged()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
