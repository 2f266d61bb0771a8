#include "offload/optimizer/lion.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Algorithm 2 of arXiv 2302.06675 in f64, in the order of lion-pytorch: decay,
// then the sign of the interpolation, then the moment.
TEST(Lion, MatchesPaperInF64) {
  constexpr int64_t kSize = 601;
  for (const StepTypes& types :
       {StepTypes{}, StepTypes{.parameter = DType::kF64,
                     .gradient = DType::kF64,
                     .moments = MomentFormat::F64()}}) {
    StepState state(types, kSize, 1);
    std::vector<double> theta, m(kSize);
    for (int64_t i = 0; i < kSize; ++i) theta.push_back(state.parameter(i));
    const auto lion = *Lion::Create({.learning_rate = 0.05,
                                     .beta1 = 0.9,
                                     .beta2 = 0.98,
                                     .weight_decay = 0.2});
    std::mt19937_64 random(2);
    for (int t = 1; t <= 25; ++t) {
      state.SetGradient(random);
      const ParameterRange range = state.Whole();
      TESSERA_ASSERT_OK(lion->Step(t, {.unscale = 0.5}, {&range, 1}));
      for (size_t i = 0; i < kSize; ++i) {
        const double g = 0.5 * state.gradient(static_cast<int64_t>(i));
        const double mean = 0.9 * m[i] + 0.1 * g;
        theta[i] *= 1 - 0.05 * 0.2;
        theta[i] -= 0.05 * (mean > 0 ? 1 : mean < 0 ? -1 : 0);
        m[i] = 0.98 * m[i] + 0.02 * g;
      }
    }
    const double bound = types.parameter == DType::kF64 ? 1e-13 : 2e-6;
    for (size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(state.parameter(static_cast<int64_t>(i)), theta[i], bound);
    }
  }
}

TEST(Lion, DoesNotMoveWithoutGradients) {
  StepState state({}, 10, 1);
  for (int64_t i = 0; i < 10; ++i) state.SetGradient(i, 0);
  const double before = state.parameter(3);
  ParameterRange range = state.Whole();
  range.second = {};
  const auto lion = *Lion::Create({.learning_rate = 0.5});
  TESSERA_EXPECT_OK(lion->Step(1, {}, {&range, 1}));
  EXPECT_EQ(state.parameter(3), before);
}

TEST(Lion, RejectsOptionsOutOfRange) {
  const auto refuses = [](const LionOptions& options, const char* message) {
    EXPECT_THAT(Lion::Create(options).status(),
                StatusIs(kInvalid, HasSubstr(message)));
  };
  refuses({.learning_rate = -1}, "Lion: learning_rate is -1");
  refuses({.beta1 = 1}, "beta1 is 1; give at least 0 and below 1");
  refuses({.beta2 = -0.5}, "beta2 is -0.5");
  refuses({.weight_decay = -1}, "weight_decay is -1");
  refuses({.threads = 0}, "0 threads");
  const auto lion = *Lion::Create({});
  EXPECT_THAT(lion->Step(0, {}, {}),
              StatusIs(kInvalid, HasSubstr("Lion: step 0")));
  ParameterRange range = StepState({}, 10, 1).Whole();
  range.first = {};
  EXPECT_THAT(lion->Step(1, {}, {&range, 1}),
              StatusIs(kInvalid, HasSubstr("Lion: range 0: first moment has")));
}

}  // namespace
}  // namespace tessera::offload
