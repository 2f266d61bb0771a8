// Tests the effect of bf16 and 8-bit moments on training.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/testing/moment_codec.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

constexpr MomentFormat kShortFormats[] = {MomentFormat::BF16(),
                                          MomentFormat::Blockwise8(),
                                          MomentFormat::Blockwise8(256)};

// Logistic regression on points that a plane separates, but for noise.
class Logistic {
 public:
  static constexpr int64_t kWeights = 600;
  static constexpr size_t kPoints = 400;

  Logistic() {
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> truth(kWeights);
    for (float& value : truth) value = normal(random);
    for (size_t n = 0; n < kPoints; ++n) {
      double score = 0;
      for (size_t i = 0; i < kWeights; ++i) {
        // Features with very different scales, hence gradients too.
        const float scale = std::pow(10.0f, -static_cast<float>(i % 4));
        points_.push_back(normal(random) * scale);
        score += points_.back() * truth[i];
      }
      labels_.push_back(score + normal(random) > 0 ? 1.0f : 0.0f);
    }
  }

  // The mean loss at the weights of `state`, and its gradient.
  double Loss(const StepState& state, std::vector<double>& gradient) const {
    std::vector<double> weights;
    for (int64_t i = 0; i < kWeights; ++i) {
      weights.push_back(state.parameter(i));
    }
    gradient.assign(kWeights, 0);
    double loss = 0;
    for (size_t n = 0; n < kPoints; ++n) {
      const float* const x = points_.data() + n * kWeights;
      double score = 0;
      for (size_t i = 0; i < kWeights; ++i) {
        score += x[i] * weights[i];
      }
      const double p = 1 / (1 + std::exp(-score));
      loss -= std::log(labels_[n] > 0 ? p : 1 - p) / kPoints;
      for (size_t i = 0; i < kWeights; ++i) {
        gradient[i] += (p - labels_[n]) * x[i] / kPoints;
      }
    }
    return loss;
  }

 private:
  std::vector<float> points_, labels_;
};

// The loss after `steps` steps from zero.
double TrainedLoss(const MomentFormat& format, int steps) {
  const Logistic problem;
  StepState state({.moments = format}, Logistic::kWeights, 1);
  auto* p = reinterpret_cast<float*>(state.Whole().parameter.data());
  std::fill_n(p, Logistic::kWeights, 0.0f);
  const auto adamw = *AdamW::Create({.learning_rate = 0.01, .weight_decay = 0});
  std::vector<double> gradient;
  for (int t = 1; t <= steps; ++t) {
    problem.Loss(state, gradient);
    for (int64_t i = 0; i < Logistic::kWeights; ++i) {
      state.SetGradient(i, gradient[static_cast<size_t>(i)]);
    }
    const ParameterRange range = state.Whole();
    EXPECT_THAT(adamw->Step(t, {}, {&range, 1}), IsOk());
  }
  return problem.Loss(state, gradient);
}

TEST(ShortMoments, TrainLikeF32Moments) {
  const double start = std::log(2.0);
  const double f32 = TrainedLoss(MomentFormat::F32(), 60);
  ASSERT_LT(f32, 0.3 * start);
  for (const MomentFormat& format : kShortFormats) {
    EXPECT_NEAR(TrainedLoss(format, 60), f32, 0.05 * f32) << format.ToString();
  }
}

// A quadratic with curvatures from 0.01 to 1: all formats reach the minimum.
TEST(ShortMoments, ReachTheBottomOfAQuadratic) {
  constexpr int64_t kSize = 5000;
  for (const MomentFormat& format :
       {MomentFormat::F32(), MomentFormat::BF16(), MomentFormat::Blockwise8(),
        MomentFormat::Blockwise8(256)}) {
    StepState state({.moments = format}, kSize, 3);
    const auto adamw = *AdamW::Create({.beta2 = 0.95, .weight_decay = 0});
    for (int t = 1; t <= 400; ++t) {
      for (int64_t i = 0; i < kSize; ++i) {
        const double curvature = std::pow(10, -static_cast<double>(i % 3));
        state.SetGradient(i, curvature * state.parameter(i));
      }
      TESSERA_ASSERT_OK(adamw->SetLearningRate(0.1 * (1 - t / 401.0)));
      const ParameterRange range = state.Whole();
      TESSERA_ASSERT_OK(adamw->Step(t, {}, {&range, 1}));
    }
    double worst = 0;
    for (int64_t i = 0; i < kSize; ++i) {
      worst = std::max(worst, std::fabs(state.parameter(i)));
    }
    EXPECT_LT(worst, 0.02) << format.ToString();
  }
}

// Compares one step's stored moments with f32: the bound of each format.
TEST(ShortMoments, StayWithinTheirErrorAfterAStep) {
  constexpr int64_t kSize = 10000;
  for (const MomentFormat& format : kShortFormats) {
    StepState exact({}, kSize, 1), rounded({.moments = format}, kSize, 1);
    std::mt19937_64 random(5), same(5);
    exact.SetGradient(random);
    rounded.SetGradient(same);
    const auto adamw = *AdamW::Create({});
    const ParameterRange ranges[] = {exact.Whole(), rounded.Whole()};
    TESSERA_ASSERT_OK(adamw->Step(1, {}, ranges));
    for (bool is_first : {true, false}) {
      const auto sign = is_first ? MomentSign::kSigned : MomentSign::kUnsigned;
      std::vector<float> x(kSize), y(kSize);
      const MomentSpan mine = is_first ? rounded.first() : rounded.second();
      TESSERA_ASSERT_OK(
          ReadMoments(is_first ? exact.first() : exact.second(), sign, x));
      TESSERA_ASSERT_OK(ReadMoments(mine, sign, y));
      for (size_t i = 0; i < kSize; ++i) {
        double bound = std::fabs(x[i]) * 0x1p-7;
        if (format.type == MomentType::kBlockwise8) {
          bound = mine.largest[i / static_cast<size_t>(format.block)] *
                  (is_first ? 0.45 / 64 : 0.45 / 128) * 1.001;
        }
        ASSERT_LE(std::fabs(x[i] - y[i]), bound) << format.ToString();
      }
    }
    // The first step's parameters do not depend on the rounding.
    for (int64_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(exact.parameter(i), rounded.parameter(i));
    }
  }
}

// The mean of second moments when gradients change from 1 to 0.
double DecayedMean(MomentRounding rounding) {
  constexpr int64_t kSize = 4096;
  StepState state({.moments = MomentFormat::BF16()}, kSize, 1);
  const auto adamw = *AdamW::Create({.beta2 = 0.999, .rounding = rounding});
  std::vector<float> v(kSize, 1.0f);
  EXPECT_THAT(WriteMoments(v, MomentSign::kUnsigned, state.second()), IsOk());
  for (int t = 1; t <= 300; ++t) {
    const ParameterRange range = state.Whole();
    EXPECT_THAT(adamw->Step(t, {}, {&range, 1}), IsOk());
  }
  EXPECT_THAT(ReadMoments(state.second(), MomentSign::kUnsigned, v), IsOk());
  double sum = 0;
  for (float value : v) sum += value;
  return sum / kSize;
}

TEST(Bf16Moments, DecayOnlyWithStochasticRounding) {
  EXPECT_NEAR(DecayedMean(MomentRounding::kStochastic), std::pow(0.999, 300),
              0.002);
  EXPECT_EQ(DecayedMean(MomentRounding::kNearest), 1.0);
}

TEST(Bf16Moments, RoundDifferentlyWithAnotherSeedAndStep) {
  const auto moments = [](uint64_t seed, int64_t step) {
    StepState state({.moments = MomentFormat::BF16()}, 1000, 1);
    std::mt19937_64 random(2);
    state.SetGradient(random);
    const auto adamw = *AdamW::Create({.bias_correction = false, .seed = seed});
    const ParameterRange range = state.Whole();
    EXPECT_THAT(adamw->Step(step, {}, {&range, 1}), IsOk());
    return state.Bytes();
  };
  EXPECT_EQ(moments(1, 1), moments(1, 1));
  EXPECT_NE(moments(1, 1), moments(2, 1));
  EXPECT_NE(moments(1, 1), moments(1, 2));
}

}  // namespace
}  // namespace tessera::offload
