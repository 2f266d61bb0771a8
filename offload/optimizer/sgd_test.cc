#include "offload/optimizer/sgd.h"

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

// Same as in adamw_test.cc.
void ExpectTorch(const SgdOptions& options, const std::vector<float>& torch) {
  StepState state({}, 8, 0);
  auto* p = reinterpret_cast<float*>(state.Whole().parameter.data());
  for (int i = 0; i < 8; ++i) p[i] = static_cast<float>(i - 3) / 4;
  const auto sgd = *Sgd::Create(options);
  for (int s = 1; s <= 5; ++s) {
    for (int i = 0; i < 8; ++i) {
      state.SetGradient(i, ((i * 7 + s * 3) % 11 - 5) / 8.0);
    }
    const ParameterRange range = state.Whole();
    EXPECT_THAT(sgd->Step(s, {}, {&range, 1}), IsOk());
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(p[i], torch[i], 2e-7) << i;
}

// torch.optim.SGD, version 2.15, foreach=False, on the CPU in f32.
TEST(Sgd, AgreesWithTorch) {
  // lr=0.1, momentum=0.9, weight_decay=0.01
  ExpectTorch({.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
              {-0.708951294f, -0.628403246f, -0.335147262f, 0.19512783f,
               0.13817589f, 0.568931937f, 0.838094532f, 1.04225504f});
  // The same with nesterov=True
  ExpectTorch({.learning_rate = 0.1,
               .momentum = 0.9,
               .nesterov = true,
               .weight_decay = 0.01},
              {-0.684442222f, -0.612273812f, -0.349923521f, 0.262502849f,
               0.0734212324f, 0.59702152f, 0.837319314f, 1.02036631f});
  // lr=0.1, momentum=0.5, dampening=0.25
  ExpectTorch({.learning_rate = 0.1, .momentum = 0.5, .dampening = 0.25},
              {-0.719140649f, -0.563671827f, -0.283593714f, 0.112500004f,
               0.164843753f, 0.548046887f, 0.789453208f, 0.996484339f});
  // lr=0.1, weight_decay=0.01
  ExpectTorch({.learning_rate = 0.1, .weight_decay = 0.01},
              {-0.721269906f, -0.497330248f, -0.27366519f, 0.0873626918f,
               0.173802361f, 0.534967482f, 0.758632779f, 0.982434869f});
}

// Algorithm 1 of arXiv 1711.05101 (SGDW), with the rate applied outside the
// momentum.
TEST(Sgd, DecoupledDecayMatchesPaper) {
  constexpr int64_t kSize = 601;
  for (const StepTypes& types :
       {StepTypes{}, StepTypes{.parameter = DType::kF64,
                     .gradient = DType::kF64,
                     .moments = MomentFormat::F64()}}) {
    StepState state(types, kSize, 1);
    std::vector<double> theta, m(kSize);
    for (int64_t i = 0; i < kSize; ++i) theta.push_back(state.parameter(i));
    const auto sgd = *Sgd::Create({.learning_rate = 0.05,
                                   .momentum = 0.8,
                                   .weight_decay = 0.2,
                                   .decay = WeightDecay::kDecoupled});
    std::mt19937_64 random(2);
    for (int t = 1; t <= 25; ++t) {
      state.SetGradient(random);
      const ParameterRange range = state.Whole();
      TESSERA_ASSERT_OK(sgd->Step(t, {.unscale = 0.5}, {&range, 1}));
      for (size_t i = 0; i < kSize; ++i) {
        m[i] = 0.8 * m[i] + 0.5 * state.gradient(static_cast<int64_t>(i));
        theta[i] -= 0.05 * m[i] + 0.05 * 0.2 * theta[i];
      }
    }
    const double bound = types.parameter == DType::kF64 ? 1e-13 : 2e-6;
    for (size_t i = 0; i < kSize; ++i) {
      EXPECT_NEAR(state.parameter(static_cast<int64_t>(i)), theta[i], bound);
    }
  }
}

TEST(Sgd, NeedsNoMomentsWithoutMomentum) {
  StepState state({}, 10, 1);
  std::mt19937_64 random(1);
  state.SetGradient(random);
  ParameterRange range = state.Whole();
  range.first = range.second = {};
  const auto plain = *Sgd::Create({});
  TESSERA_EXPECT_OK(plain->Step(1, {}, {&range, 1}));
  const auto momentum = *Sgd::Create({.momentum = 0.9});
  EXPECT_THAT(
      momentum->Step(1, {}, {&range, 1}),
      StatusIs(kInvalid, HasSubstr("Sgd: range 0: first moment has 0")));
}

TEST(Sgd, RejectsOptionsOutOfRange) {
  const auto refuses = [](const SgdOptions& options, const char* message) {
    EXPECT_THAT(Sgd::Create(options).status(),
                StatusIs(kInvalid, HasSubstr(message)));
  };
  refuses({.learning_rate = -1}, "Sgd: learning_rate is -1");
  refuses({.momentum = 1}, "momentum is 1; give at least 0 and below 1");
  refuses({.momentum = 0.5, .dampening = -1}, "dampening is -1");
  refuses({.nesterov = true}, "nesterov takes a momentum above 0");
  refuses({.momentum = 0.5, .dampening = 0.1, .nesterov = true}, "nesterov");
  refuses({.weight_decay = -1}, "weight_decay is -1");
  refuses({.threads = 0}, "0 threads");
  const auto sgd = *Sgd::Create({});
  EXPECT_THAT(sgd->Step(0, {}, {}), StatusIs(kInvalid, HasSubstr("step 0")));
  EXPECT_THAT(sgd->SetLearningRate(-1), StatusIs(kInvalid));
  TESSERA_EXPECT_OK(sgd->SetLearningRate(0.25));
  EXPECT_EQ(sgd->options().learning_rate, 0.25);
}

}  // namespace
}  // namespace tessera::offload
