// AlgorithmCase: a collective with inputs and expected results, for tests over
// ThreadWorld.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TESTING_ALGORITHM_CASE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TESTING_ALGORITHM_CASE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/engine/operation_context.h"
#include "collectives/operation/operation.h"
#include "collectives/testing/thread_transport.h"

namespace tessera::collectives {

// Calls body(T()) with the C++ type of a reducible dtype.
template <typename Body>
auto WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF64:
      return body(double());
    case DType::kF16:
      return body(F16());
    case DType::kBF16:
      return body(BF16());
    case DType::kI64:
      return body(int64_t());
    case DType::kI32:
      return body(int32_t());
    case DType::kI8:
      return body(int8_t());
    case DType::kU8:
      return body(uint8_t());
    default:
      return body(float());
  }
}

inline double LoadElement(DType dtype, const std::byte* base, int64_t index) {
  return WithType(dtype, [&]<typename T>(T value) {
    std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<double>(value);
    } else {
      return static_cast<double>(static_cast<float>(value));
    }
  });
}

inline void StoreElement(DType dtype, std::byte* base, int64_t index,
                         double number) {
  WithType(dtype, [&]<typename T>(T value) {
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<T>(number);
    } else {
      value = T(static_cast<float>(number));
    }
    std::memcpy(base + index * static_cast<int64_t>(sizeof(T)), &value,
                sizeof(T));
  });
}

// The distance from 1 to the next number of a floating-point type.
inline double EpsilonOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::ldexp(1, -52);
    case DType::kF16:
      return std::ldexp(1, -10);
    case DType::kBF16:
      return std::ldexp(1, -7);
    default:
      return std::ldexp(1, -23);
  }
}

// One operation with one algorithm.
struct AlgorithmCase {
  Algorithm algorithm = Algorithm::kRing;
  OpKind kind = OpKind::kAllReduce;
  DType dtype = DType::kF32;
  Reduction reduction = {};
  int64_t count = 0;  // Elements of the whole message, or of each block if the
                      // kind has blocks.
  bool uneven = false;  // Blocks of up to `count`, some empty.
  Rank root = {};
  bool in_place = false;  // Only every second rank if mixed.
  bool mixed = false;
  AlgorithmOptions options = {};
  uint64_t seed = 0;
};

std::string Describe(const AlgorithmCase& test_case);

// A case with the inputs and expected outputs of all ranks.
class PreparedCase {
 public:
  PreparedCase(const AlgorithmCase& test_case, int64_t ranks);

  // Runs this rank's part as call number `sequence`. Checks the output, the
  // memory around it, that an input that is not in place is unchanged, and that
  // no request is left. Internal if a check fails.
  absl::Status Run(ThreadWorld& world, Transport& transport, uint64_t sequence,
                   Scratch& scratch) const;

  const AlgorithmCase& test_case() const { return case_; }

 private:
  struct Shape {
    int64_t input = 0;   // Elements.
    int64_t output = 0;  //
    bool has_input = true;
    bool has_output = true;
    int64_t own_block = 0;  // Offset of the smaller buffer in the larger one.
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
  std::vector<std::vector<std::byte>> expected_;  // Exact results.
  // Inexact results: expected values and tolerances.
  std::vector<double> values_;
  std::vector<double> tolerances_;
};

// True if the result does not depend on the order of the reduction.
bool IsExact(const AlgorithmCase& test_case);

// Runs the cases one after another on all ranks of a new world. Returns the
// errors, empty on success.
std::string RunCases(int64_t ranks, const ThreadWorldOptions& options,
                     const std::vector<AlgorithmCase>& cases);

// A random case of `algorithm` for `ranks` ranks.
AlgorithmCase RandomCase(Algorithm algorithm, std::mt19937_64& random,
                         int64_t ranks, int64_t largest);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TESTING_ALGORITHM_CASE_H_
