// Helpers for the optimizer's tests: StepState, a parameter with everything
// that a step needs, and ForEachInstructionSet.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_TESTING_STEP_STATE_H_
#define TESSERA_OFFLOAD_OPTIMIZER_TESTING_STEP_STATE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/dtype/dtype.h"
#include "base/highway_targets.h"
#include "offload/optimizer/parameter_range.h"
// Must come after highway_targets.h.
#include "hwy/highway.h"

namespace tessera::offload {

// Runs `body` once for each instruction set that the processor supports and the
// kernels are compiled for, including the scalar one. Returns their number.
inline int ForEachInstructionSet(absl::FunctionRef<void()> body) {
  int count = 0;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0;
       left &= left - 1) {
    hwy::SetSupportedTargetsForTest(left & -left);
    body();
    ++count;
  }
  hwy::SetSupportedTargetsForTest(0);
  return count;
}

// A parameter with everything that a step needs, of any types, in memory of
// exactly the right size.
//
//   StepState state({.moments = MomentFormat::BF16(), .copy = DType::kF16},
//                   /*size=*/1000, /*seed=*/1);
//   state.SetGradient(random);
//   ... adamw->Step(1, {}, state.Ranges({0, 300, 1000})) ...
//   EXPECT_EQ(state.Bytes(), other.Bytes());

struct StepTypes {
  DType parameter = DType::kF32;
  DType gradient = DType::kF32;
  MomentFormat moments = MomentFormat::F32();
  DType copy = DType::kI8;  // kI8: none.
};

class StepState {
 public:
  // Parameters between -2 and 2, moments of zero.
  StepState(const StepTypes& types, int64_t size, uint64_t seed);

  // Between -1 and 1, of magnitudes that differ by 2^10.
  void SetGradient(std::mt19937_64& random);
  void SetGradient(int64_t index, double value);

  double parameter(int64_t index) const;
  double gradient(int64_t index) const;
  double copy(int64_t index) const;
  MomentSpan first();
  MomentSpan second();

  ParameterRange Whole();
  // One range between each two adjacent `bounds`.
  std::vector<ParameterRange> Ranges(std::span<const int64_t> bounds);

  // Everything that a step writes.
  std::vector<std::byte> Bytes() const;

 private:
  StepTypes types_;
  int64_t size_;
  std::vector<std::byte> parameter_, gradient_, first_, second_, copy_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_TESTING_STEP_STATE_H_
