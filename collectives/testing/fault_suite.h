// The fault suite: tests of the behaviour that every engine must show on
// errors. Instantiate it for an engine:
//
//   INSTANTIATE_TEST_SUITE_P(MyEngine, FaultTest,
//                            ::testing::Values(MyEngineUnderFault()));
#ifndef TESSERA_COLLECTIVES_TESTING_FAULT_SUITE_H_
#define TESSERA_COLLECTIVES_TESTING_FAULT_SUITE_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

struct EngineUnderFault {
  std::string name;
  std::function<std::vector<RankOutcome>(int64_t ranks, const RankBody& body,
                                         const CommunicatorOptions& options)>
      run;

  bool ranks_are_processes = false;  // Ranks can be killed one by one.
  bool knows_peers =
      true;  // Errors contain the hosts and pids of missing ranks.
  bool notices_death = true;  // Before the deadline.
  // Errors say that a killed rank is dead; otherwise it may be that the
  // connection to it was lost.
  bool says_dead = true;
  bool notices_mismatch = true;  // Before the deadline.
  bool abort_reaches_peers = true;
  bool has_algorithms = true;  // Calls can request an algorithm.
  bool has_tags = false;       // Messages can have tags.
};

inline std::ostream& operator<<(std::ostream& os, const EngineUnderFault& e) {
  return os << e.name;
}

class FaultTest : public ::testing::TestWithParam<EngineUnderFault> {
 protected:
  // Checks that no child process is left.
  void TearDown() override;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_FAULT_SUITE_H_
