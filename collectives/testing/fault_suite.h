// The fault suite: tests of what every engine must do when something goes
// wrong.
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

inline CommunicatorOptions WithTimeout(absl::Duration timeout) {
  CommunicatorOptions options;
  options.timeout = timeout;
  return options;
}

// A sum over its own buffers.
using Call = std::function<absl::Status(Communicator&)>;

inline absl::Status SumOf(Communicator& communicator, int64_t count,
                          const CallOptions& call = {}) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  return communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum(),
                                call);
}

struct NamedCall {
  std::string name;
  Call call;
};

// Collectives that no rank can complete without all others.
inline std::vector<NamedCall> SymmetricCalls() {
  return {
      {"barrier", [](Communicator& c) { return c.Barrier(); }},
      {"small all_reduce", [](Communicator& c) { return SumOf(c, 4); }},
      {"large all_reduce", [](Communicator& c) { return SumOf(c, 1 << 20); }},
      {"ring all_reduce",
       [](Communicator& c) {
         return SumOf(c, 10'000, {.algorithm = Algorithm::kRing});
       }},
      {"all_gather",
       [](Communicator& c) {
         const std::vector<float> in(1000);
         std::vector<float> out(static_cast<size_t>(1000 * c.size()));
         return c.AllGather(ConstBuffer(std::span(in)), Buffer(std::span(out)));
       }},
  };
}

inline bool Says(const absl::Status& status, std::string_view part) {
  return absl::StrContains(status.message(), part);
}

// Instantiate the suite for an engine:
//
//   INSTANTIATE_TEST_SUITE_P(MyEngine, FaultTest,
//                            ::testing::Values(MyEngineUnderFault()));

struct EngineUnderFault {
  std::string name;
  std::function<std::vector<RankOutcome>(int64_t ranks, const RankBody& body,
                                         const CommunicatorOptions& options)>
      run;

  bool ranks_are_processes = false;  // They can be killed one by one.
  bool knows_peers =
      true;  // Errors contain the hosts and pids of missing ranks.
  bool notices_death = true;     // Before the deadline.
  bool notices_mismatch = true;  // Before the deadline.
  bool abort_reaches_peers = true;
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
