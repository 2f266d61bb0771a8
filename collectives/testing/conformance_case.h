// ConformanceCase: one operation with an input that every rank can compute for
// every other one, and the check of its output.
//
// Values are small whole numbers, such that every type holds every result: the
// check is for equality, whatever the order of the reduction.
#ifndef TESSERA_COLLECTIVES_TESTING_CONFORMANCE_CASE_H_
#define TESSERA_COLLECTIVES_TESTING_CONFORMANCE_CASE_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// Where a case's buffers lie.
enum class CaseMemory : uint8_t {
  kOrdinary,
  kShared,  // Communicator::AllocateShared
  kMixed,   // Shared on every second rank.
};

struct ConformanceCase {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  Reduction reduction = {};
  int64_t count = 0;    // Of the whole message of the unparted kinds, else of
                        // each block.
  bool uneven = false;  // Blocks of about `count`, some empty.
  Rank root = {};
  bool in_place = false;
  bool started = false;  // Start and Wait instead of Run.
  CaseMemory memory = CaseMemory::kOrdinary;
  std::optional<Algorithm> algorithm = {};
  uint64_t seed = 0;
};

std::string Describe(const ConformanceCase& test_case);

// Runs it on this rank of the group and checks the output, that nothing around
// it was written, and that an input that is not in place is what it was. All
// ranks call with the same case. Internal where something is wrong.
absl::Status RunCase(Communicator& communicator,
                     const ConformanceCase& test_case);

// A random case that `ranks` ranks can run; the same for the same state of
// `random`. `largest` bounds the count.
ConformanceCase RandomCase(std::mt19937_64& random, int64_t ranks,
                           int64_t largest);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_CONFORMANCE_CASE_H_
