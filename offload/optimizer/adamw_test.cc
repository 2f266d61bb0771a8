#include "offload/optimizer/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/small_float.h"
#include "base/os/thread_pool.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Algorithm 2 of arXiv 1711.05101, line by line, in f64; the schedule
// multiplier alpha applies to both terms, as in every framework.
class PaperAdamW {
 public:
  PaperAdamW(const AdamWOptions& options, std::vector<double> theta)
      : options_(options),
        theta_(std::move(theta)),
        m_(theta_.size()),
        v_(theta_.size()) {}

  void Step(int t, const std::vector<double>& gradient) {
    for (size_t i = 0; i < theta_.size(); ++i) {
      const AdamWOptions& o = options_;
      double g = gradient[i];
      if (o.decay == WeightDecay::kCoupled) g += o.weight_decay * theta_[i];
      m_[i] = o.beta1 * m_[i] + (1 - o.beta1) * g;
      v_[i] = o.beta2 * v_[i] + (1 - o.beta2) * g * g;
      const double m_hat =
          o.bias_correction ? m_[i] / (1 - std::pow(o.beta1, t)) : m_[i];
      const double v_hat =
          o.bias_correction ? v_[i] / (1 - std::pow(o.beta2, t)) : v_[i];
      double change = m_hat / (std::sqrt(v_hat) + o.epsilon);
      if (o.decay == WeightDecay::kDecoupled) {
        change += o.weight_decay * theta_[i];
      }
      theta_[i] -= o.learning_rate * change;
    }
  }

  double theta(size_t i) const { return theta_[i]; }

 private:
  AdamWOptions options_;
  std::vector<double> theta_, m_, v_;
};

// The largest difference from the paper after `steps` steps, with gradients
// multiplied by `scale`.
double WorstError(const AdamWOptions& options, const StepTypes& types,
                  int steps, const StepScale& scale = {}) {
  constexpr int64_t kSize = 1237;
  StepState state(types, kSize, /*seed=*/1);
  std::vector<double> theta, gradient(kSize);
  for (int64_t i = 0; i < kSize; ++i) theta.push_back(state.parameter(i));
  PaperAdamW paper(options, theta);
  const auto adamw = *AdamW::Create(options);
  std::mt19937_64 random(2);
  double worst = 0;
  for (int t = 1; t <= steps; ++t) {
    state.SetGradient(random);
    for (int64_t i = 0; i < kSize; ++i) {
      gradient[static_cast<size_t>(i)] =
          state.gradient(i) * scale.unscale * scale.clip_factor;
    }
    const ParameterRange range = state.Whole();
    EXPECT_THAT(adamw->Step(t, scale, {&range, 1}), IsOk());
    paper.Step(t, gradient);
    for (int64_t i = 0; i < kSize; ++i) {
      const double expected = paper.theta(static_cast<size_t>(i));
      worst = std::max(worst, std::fabs(state.parameter(i) - expected) /
                                  std::max(1.0, std::fabs(expected)));
    }
  }
  return worst;
}

// Beside ranges that decay, with the same step.
TEST(AdamW, UndecayedRangesMatchOptimizerWithoutDecay) {
  for (const WeightDecay decay :
       {WeightDecay::kDecoupled, WeightDecay::kCoupled}) {
    for (const StepTypes& types :
         {StepTypes{}, StepTypes{.moments = MomentFormat::Blockwise8(64),
                       .copy = DType::kBF16}}) {
      StepState decayed(types, 200, 1), kept(types, 200, 1),
          expected(types, 200, 1), shrunk(types, 200, 1);
      const auto adamw = *AdamW::Create({.weight_decay = 0.5, .decay = decay});
      const auto without = *AdamW::Create({.weight_decay = 0, .decay = decay});
      for (int t = 1; t <= 3; ++t) {
        std::vector<ParameterRange> ranges;
        for (StepState* state : {&decayed, &kept, &expected, &shrunk}) {
          std::mt19937_64 random(static_cast<uint64_t>(t));
          state->SetGradient(random);
          ranges.push_back(state->Whole());
        }
        ranges[1].decays = false;
        EXPECT_THAT(adamw->Step(t, {}, {ranges.data(), 2}), IsOk());
        EXPECT_THAT(without->Step(t, {}, {&ranges[2], 1}), IsOk());
        EXPECT_THAT(adamw->Step(t, {}, {&ranges[3], 1}), IsOk());
      }
      EXPECT_EQ(kept.Bytes(), expected.Bytes());
      EXPECT_EQ(decayed.Bytes(), shrunk.Bytes());
      EXPECT_NE(decayed.Bytes(), kept.Bytes());
    }
  }
}

TEST(AdamW, MatchesPaper) {
  const AdamWOptions options[] = {
      {},
      {.learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3},
      {.learning_rate = 0.01, .epsilon = 1e-3, .bias_correction = false},
      {.learning_rate = 0.01, .decay = WeightDecay::kCoupled},
      {.beta1 = 0, .beta2 = 0, .epsilon = 0.1, .weight_decay = 0},
  };
  for (const AdamWOptions& o : options) {
    ForEachInstructionSet([&] {
      EXPECT_LT(WorstError(o, {}, 30), 2e-6);
      EXPECT_LT(WorstError(o, {.gradient = DType::kBF16}, 30), 2e-6);
      EXPECT_LT(WorstError(o, {.gradient = DType::kF16}, 30), 2e-6);
      EXPECT_LT(WorstError(o,
                           {.parameter = DType::kF64,
                            .gradient = DType::kF64,
                            .moments = MomentFormat::F64()},
                           30),
                1e-12);
    });
  }
}

TEST(AdamW, ScalesGradientsFirst) {
  EXPECT_LT(WorstError({.epsilon = 0.1}, {}, 20,
                       {.unscale = 1 / 3.0, .clip_factor = 0.7}),
            2e-6);
}

// Gradients and parameters are exact in f32. Expected results come from
// torch.optim with foreach=False, version 2.15, on the CPU in f32:
//   p = torch.tensor([(i - 3) / 4 for i in range(8)])
//   steps 1 to 5: p.grad = [((i * 7 + s * 3) % 11 - 5) / 8 for i in range(8)]
std::vector<float> StepAsInTorch(const AdamWOptions& options) {
  StepState state({}, 8, 0);
  auto* p = reinterpret_cast<float*>(state.Whole().parameter.data());
  for (int i = 0; i < 8; ++i) p[i] = static_cast<float>(i - 3) / 4;
  const auto adamw = *AdamW::Create(options);
  for (int s = 1; s <= 5; ++s) {
    for (int i = 0; i < 8; ++i) {
      state.SetGradient(i, ((i * 7 + s * 3) % 11 - 5) / 8.0);
    }
    const ParameterRange range = state.Whole();
    EXPECT_THAT(adamw->Step(s, {}, {&range, 1}), IsOk());
  }
  return std::vector<float>(p, p + 8);
}

TEST(AdamW, AgreesWithTorch) {
  // AdamW(lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
  const float adamw[] = {-0.735474169f, -0.513806641f, -0.268607855f,
                         0.0245626867f, 0.23613736f,   0.498767763f,
                         0.765045285f,  0.993491113f};
  // Adam(lr=0.01, betas=(0.8, 0.999), eps=1e-6, weight_decay=0.1)
  const float adam[] = {-0.731242657f, -0.509991705f, -0.266547859f,
                        0.0237960313f, 0.235539794f,  0.487861097f,
                        0.759531438f,  0.989968002f};
  const std::vector<float> ours = StepAsInTorch(
      {.learning_rate = 0.01, .beta2 = 0.99, .weight_decay = 0.1});
  const std::vector<float> coupled =
      StepAsInTorch({.learning_rate = 0.01,
                     .beta1 = 0.8,
                     .epsilon = 1e-6,
                     .weight_decay = 0.1,
                     .decay = WeightDecay::kCoupled});
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(ours[i], adamw[i], 2e-7) << i;
    EXPECT_NEAR(coupled[i], adam[i], 2e-7) << i;
  }
}

TEST(AdamW, UnscalesByPowersOfTwoWithoutAnError) {
  std::mt19937_64 random(3);
  StepState plain({}, 333, 1), scaled({}, 333, 1);
  plain.SetGradient(random);
  for (int64_t i = 0; i < 333; ++i) {
    scaled.SetGradient(i, plain.gradient(i) * 65536);
  }
  const auto adamw = *AdamW::Create({});
  const ParameterRange a = plain.Whole(), b = scaled.Whole();
  TESSERA_ASSERT_OK(adamw->Step(1, {}, {&a, 1}));
  TESSERA_ASSERT_OK(adamw->Step(1, {.unscale = 1 / 65536.0}, {&b, 1}));
  EXPECT_EQ(plain.Bytes(), scaled.Bytes());
}

TEST(AdamW, RoundsTheProductOfScalesOnce) {
  StepState twice({}, 100, 1), once({}, 100, 1);
  std::mt19937_64 random(4), same(4);
  twice.SetGradient(random);
  once.SetGradient(same);
  const auto adamw = *AdamW::Create({});
  const ParameterRange a = twice.Whole(), b = once.Whole();
  TESSERA_ASSERT_OK(
      adamw->Step(1, {.unscale = 1 / 3.0, .clip_factor = 0.3}, {&a, 1}));
  TESSERA_ASSERT_OK(adamw->Step(1, {.unscale = 0.3 / 3.0}, {&b, 1}));
  EXPECT_EQ(twice.Bytes(), once.Bytes());
}

TEST(AdamW, CopiesTheNewParametersOut) {
  ForEachInstructionSet([] {
    for (DType copy : {DType::kBF16, DType::kF16}) {
      for (int64_t size : {1, 31, 64, 513, 3000}) {
        StepState state({.copy = copy}, size, 5);
        std::mt19937_64 random(6);
        state.SetGradient(random);
        const auto adamw = *AdamW::Create({});
        const ParameterRange range = state.Whole();
        TESSERA_ASSERT_OK(adamw->Step(1, {}, {&range, 1}));
        for (int64_t i = 0; i < size; ++i) {
          const auto p = static_cast<float>(state.parameter(i));
          const float expected = copy == DType::kBF16
                                     ? static_cast<float>(BF16(p))
                                     : static_cast<float>(F16(p));
          ASSERT_EQ(state.copy(i), expected) << i << " of " << size;
        }
      }
    }
  });
}

TEST(AdamW, CopiesEveryKindOfF16) {
  // Subnormals, ties, overflow, signs: parameters that no step changes.
  std::vector<float> p = {
      0.0f,    -0.0f,    1e-8f,    2.98e-8f,  2.99e-8f,   6e-8f,
      6.1e-5f, -6.2e-5f, 65504,    65519.9f,  65520,      -1e30f,
      2049,    2051,     1.0f / 3, kInfinity, -kInfinity, 5.9604645e-8f * 1.5f};
  for (uint32_t bits = 0x33000000; bits < 0x48000000; bits += 0x12345) {
    p.push_back(std::bit_cast<float>(bits));
  }
  ForEachInstructionSet([&] {
    std::vector<float> kept = p, g(p.size()), m = g, v = g;
    std::vector<F16> copy(p.size());
    const ParameterRange range = {.parameter = std::span(kept),
                                  .gradient = std::span<const float>(g),
                                  .first = MomentSpan::Of(std::span(m)),
                                  .second = MomentSpan::Of(std::span(v)),
                                  .copy = std::span(copy)};
    const auto adamw = *AdamW::Create({.weight_decay = 0});
    TESSERA_ASSERT_OK(adamw->Step(1, {}, {&range, 1}));
    for (size_t i = 0; i < p.size(); ++i) {
      ASSERT_EQ(copy[i].bits(), F16(p[i]).bits()) << p[i];
    }
  });
}

TEST(AdamW, LeavesFrozenAndEmptyRangesAlone) {
  StepState frozen({.copy = DType::kBF16}, 50, 1), live({}, 50, 2);
  const std::vector<std::byte> before = frozen.Bytes();
  const std::vector<std::byte> live_before = live.Bytes();
  std::mt19937_64 random(1);
  frozen.SetGradient(random);
  live.SetGradient(random);
  ParameterRange ranges[] = {{}, frozen.Whole(), live.Whole(), {}};
  ranges[1].frozen = true;
  ranges[1].gradient = {};
  const auto adamw = *AdamW::Create({.threads = 2});
  TESSERA_ASSERT_OK(adamw->Step(1, {}, ranges));
  EXPECT_EQ(frozen.Bytes(), before);
  EXPECT_NE(live.Bytes(), live_before);
  TESSERA_EXPECT_OK(adamw->Step(1, {}, {}));
}

TEST(AdamW, HasTheSameBitsOnASharedPool) {
  const int64_t size = 3 * kElementsOfPart + 5;
  const auto pool = std::make_shared<ThreadPool>(3);
  std::vector<std::byte> expected;
  for (const AdamWOptions& options :
       {AdamWOptions{.threads = 1}, AdamWOptions{.pool = pool}}) {
    StepState state({}, size, 1);
    std::mt19937_64 random(4);
    state.SetGradient(random);
    const ParameterRange ranges[] = {state.Whole()};
    const auto adamw = *AdamW::Create(options);
    TESSERA_ASSERT_OK(adamw->Step(1, {}, ranges));
    if (expected.empty()) expected = state.Bytes();
    EXPECT_EQ(state.Bytes(), expected);
  }
  EXPECT_EQ(pool.use_count(), 1);
}

TEST(AdamW, NonFiniteGradientAffectsOnlyItsElement) {
  ForEachInstructionSet([] {
    for (int64_t bad = 0; bad < 70; ++bad) {
      StepState state({}, 70, 1), good({}, 70, 1);
      state.SetGradient(bad, kInfinity);
      const ParameterRange ranges[] = {state.Whole(), good.Whole()};
      const auto adamw = *AdamW::Create({});
      TESSERA_ASSERT_OK(adamw->Step(1, {}, ranges));
      for (int64_t i = 0; i < 70; ++i) {
        EXPECT_EQ(std::isnan(state.parameter(i)), i == bad);
        if (i != bad) {
          EXPECT_EQ(state.parameter(i), good.parameter(i));
        }
      }
    }
  });
}

TEST(AdamW, RejectsOptionsOutOfRange) {
  const auto refuses = [](const AdamWOptions& options, const char* message) {
    EXPECT_THAT(AdamW::Create(options).status(),
                StatusIs(kInvalid, HasSubstr(message)));
  };
  refuses({.learning_rate = -1}, "AdamW: learning_rate is -1; give a finite");
  refuses({.learning_rate = std::nan("")}, "learning_rate is nan");
  refuses({.beta1 = 1}, "beta1 is 1; give at least 0 and below 1");
  refuses({.beta1 = -0.1}, "beta1 is -0.1");
  refuses({.beta2 = 1.5}, "beta2 is 1.5");
  refuses({.epsilon = -1e-8}, "epsilon is -1e-08");
  refuses({.weight_decay = kInfinity}, "weight_decay is inf");
  refuses({.threads = 0}, "0 threads; give 1 to 1024");
  refuses({.threads = 1025}, "1025 threads");
}

TEST(AdamW, RejectsInvalidStepsWithoutWriting) {
  StepState state({}, 10, 1);
  std::mt19937_64 random(1);
  state.SetGradient(random);
  const std::vector<std::byte> before = state.Bytes();
  const auto adamw = *AdamW::Create({});
  ParameterRange ranges[] = {state.Whole(), {}};
  EXPECT_THAT(adamw->Step(0, {}, ranges),
              StatusIs(kInvalid, HasSubstr("AdamW: step 0; the first one")));
  EXPECT_THAT(adamw->Step(1, {.unscale = -1}, ranges),
              StatusIs(kInvalid, HasSubstr("unscale is -1")));
  EXPECT_THAT(adamw->Step(1, {.clip_factor = std::nan("")}, ranges),
              StatusIs(kInvalid, HasSubstr("clip_factor is nan")));
  // The second range is invalid: the first is not written either.
  ranges[1].first.size = 1;
  ranges[1].name = "bad";
  EXPECT_THAT(adamw->Step(1, {}, ranges),
              StatusIs(kInvalid, HasSubstr("AdamW: range 1 (bad): first")));
  EXPECT_EQ(state.Bytes(), before);
}

TEST(AdamW, TakesANewLearningRate) {
  const auto adamw = *AdamW::Create({});
  TESSERA_EXPECT_OK(adamw->SetLearningRate(0.5));
  EXPECT_EQ(adamw->options().learning_rate, 0.5);
  EXPECT_THAT(adamw->SetLearningRate(-1), StatusIs(kInvalid));
  EXPECT_EQ(adamw->options().learning_rate, 0.5);
}

TEST(AdamW, BiasCorrectionIsAccurateForBetaNearOne) {
  // 1 - pow(beta, 1) in f64 would lose 10 digits.
  StepState state({.parameter = DType::kF64,
                   .gradient = DType::kF64,
                   .moments = MomentFormat::F64()},
                  1, 1);
  state.SetGradient(0, 1);
  const double before = state.parameter(0);
  const auto adamw = *AdamW::Create({.learning_rate = 1,
                                     .beta1 = 0,
                                     .beta2 = 1 - 0x1p-40,
                                     .epsilon = 0,
                                     .weight_decay = 0});
  const ParameterRange range = state.Whole();
  TESSERA_ASSERT_OK(adamw->Step(1, {}, {&range, 1}));
  EXPECT_NEAR(state.parameter(0), before - 1, 1e-15);
}

}  // namespace
}  // namespace tessera::offload
