// The fault suite: what every engine must do when something goes wrong, as one
// set of tests.
//
//   INSTANTIATE_TEST_SUITE_P(MyEngine, FaultTest,
//                            ::testing::Values(MyEngineUnderFault()));
#ifndef TESSERA_COLLECTIVES_TESTING_FAULT_SUITE_H_
#define TESSERA_COLLECTIVES_TESTING_FAULT_SUITE_H_

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/testing/run_processes.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

struct EngineUnderFault {
  std::string name;
  std::function<std::vector<RankOutcome>(int64_t ranks, const RankBody& body,
                                         const CommunicatorOptions& options)>
      run;

  bool ranks_are_processes = false;  // They can be killed one by one.
  bool knows_peers = true;           // Errors say where the missing ranks are.
  bool notices_death = true;         // Before the deadline.
  bool notices_mismatch = true;      // Before the deadline.
  bool abort_reaches_peers = true;
};

inline std::ostream& operator<<(std::ostream& os, const EngineUnderFault& e) {
  return os << e.name;
}

class FaultTest : public ::testing::TestWithParam<EngineUnderFault> {
 protected:
  // No child process is left.
  void TearDown() override;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_FAULT_SUITE_H_
