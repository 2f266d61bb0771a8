// AlgorithmCase: one operation by one algorithm, with inputs and the results
// that it must have, for tests over ThreadWorld.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CASE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CASE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/algorithms/algorithm_options.h"
#include "collectives/engine/scratch.h"
#include "collectives/engine/testing/thread_transport.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

struct AlgorithmCase {
  Algorithm algorithm = Algorithm::kRing;
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  Reduction reduction = {};
  int64_t count = 0;    // Of the whole message of the unparted kinds, else of
                        // each block.
  bool uneven = false;  // Blocks of up to `count`, some empty.
  Rank root = {};
  bool in_place = false;  // Every second rank is, where mixed.
  bool mixed = false;
  AlgorithmOptions options = {};
  uint64_t seed = 0;
};

std::string Describe(const AlgorithmCase& test_case);

// The case with everybody's input and what each output must be.
class PreparedCase {
 public:
  PreparedCase(const AlgorithmCase& test_case, int64_t ranks);

  // Runs this rank's part as call number `sequence` and checks the output, that
  // nothing around it was written, that an input that is not in place is what
  // it was and that no request is left. Internal where something is wrong.
  absl::Status Run(ThreadWorld& world, Transport& transport, uint64_t sequence,
                   Scratch& scratch) const;

  const AlgorithmCase& test_case() const { return case_; }

 private:
  struct Shape {
    int64_t input = 0;   // Elements.
    int64_t output = 0;  //
    bool has_input = true;
    bool has_output = true;
    int64_t own_block = 0;  // Where the smaller side lies in the larger one.
  };
  Shape ShapeOf(int64_t rank) const;
  Operation Make(int64_t rank, ConstBuffer input, Buffer output) const;
  void FillInputs();
  void ExpectMoved();
  void ExpectReduced();
  absl::Status Check(int64_t rank, const std::byte* output) const;
  absl::Status CheckNear(int64_t rank, const std::byte* output) const;
  int64_t CountFor(int64_t from, int64_t to) const;

  AlgorithmCase case_;
  int64_t ranks_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::vector<std::byte>> expected_;  // Bits, where exact.
  // Of the inexact: the value and how far off it may be, of the whole vector.
  std::vector<double> values_;
  std::vector<double> tolerances_;
};

// Whether the result does not depend on the order of the reduction.
bool IsExact(const AlgorithmCase& test_case);

// Runs the cases one after another on all ranks of a new world; empty where all
// went well, else what did not.
std::string RunCases(int64_t ranks, const ThreadWorldOptions& options,
                     const std::vector<AlgorithmCase>& cases);

// A random case of `algorithm` for `ranks` ranks.
AlgorithmCase RandomCase(Algorithm algorithm, std::mt19937_64& random,
                         int64_t ranks, int64_t largest);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_ALGORITHM_CASE_H_
