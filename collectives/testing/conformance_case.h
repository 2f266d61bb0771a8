// ConformanceCase: one operation on every rank with a check of its output.
//
// Every rank can compute the input of every other rank. Values are small whole
// numbers that every type represents exactly, so the check is for equality in
// any order of the reduction.
#ifndef TESSERA_COLLECTIVES_TESTING_CONFORMANCE_CASE_H_
#define TESSERA_COLLECTIVES_TESTING_CONFORMANCE_CASE_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// The kind of memory of a case's buffers.
enum class CaseMemory : uint8_t {
  kOrdinary,
  kShared,  // Communicator::AllocateShared
  kMixed,   // Shared on every second rank.
};

struct ConformanceCase {
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  Reduction reduction = {};
  int64_t count = 0;    // Elements of the whole message, or of each block if
                        // the kind has blocks.
  bool uneven = false;  // Blocks of about `count`, some empty.
  Rank root = {};
  bool in_place = false;
  bool started = false;  // Start and Wait instead of Run.
  // More than 0: Prepare, and this many runs with different inputs.
  int64_t prepared = 0;
  CaseMemory memory = CaseMemory::kOrdinary;
  std::optional<Algorithm> algorithm = {};
  uint64_t seed = 0;
};

std::string Describe(const ConformanceCase& test_case);

// Runs the case on this rank. Checks the output, the memory around it, and that
// an input that is not in place is unchanged. All ranks call it with the same
// case. Internal if a check fails.
absl::Status RunCase(Communicator& communicator,
                     const ConformanceCase& test_case);

// A random case for `ranks` ranks with a count of at most `largest`.
// Deterministic for a given state of `random`.
ConformanceCase RandomCase(std::mt19937_64& random, int64_t ranks,
                           int64_t largest);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_CONFORMANCE_CASE_H_
