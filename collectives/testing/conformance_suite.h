// The conformance suite: tests that every engine must pass. Instantiate it for
// an engine:
//
//   // In my_engine_conformance_test.cc, linked with :conformance_suite.
//   INSTANTIATE_TEST_SUITE_P(MyEngine, ConformanceTest,
//                            ::testing::Values(MyEngineUnderTest()));
#ifndef TESSERA_COLLECTIVES_TESTING_CONFORMANCE_SUITE_H_
#define TESSERA_COLLECTIVES_TESTING_CONFORMANCE_SUITE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/communicator.h"
#include "collectives/operation/operation.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

// An engine under test.
struct EngineUnderTest {
  std::string name;

  // Runs the body on every rank of a new world; returns the statuses of the
  // ranks that this process can see.
  std::function<std::vector<absl::Status>(int64_t ranks, const RankBody& body,
                                          const CommunicatorOptions& options)>
      run;

  int64_t fewest_ranks = 1;  // 2: a rank cannot receive from itself first.
  int64_t most_ranks = 9;
  int64_t largest_count = 100'003;
  int64_t random_operations = 1000;

  // If true, runs the full product of kinds, types, reductions and algorithms;
  // otherwise a sample (for slow engines).
  int64_t keep_one_case_in = 1;

  // False if calls cannot request an algorithm.
  bool has_algorithms = true;
};

inline std::ostream& operator<<(std::ostream& os, const EngineUnderTest& e) {
  return os << e.name;
}

class ConformanceTest : public ::testing::TestWithParam<EngineUnderTest> {
 protected:
  // Runs on worlds of 1 to most_ranks ranks.
  void OnEveryWorld(const RankBody& body,
                    const CommunicatorOptions& options = {});
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_CONFORMANCE_SUITE_H_
