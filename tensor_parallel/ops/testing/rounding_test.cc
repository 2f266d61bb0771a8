// The bounds of rounding against models of the hardware: no trial of a model
// exceeds them, some come near, and mistakes exceed them.

#include "tensor_parallel/ops/testing/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/dtype/convert_value.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/attention_problem.h"
#include "tensor_parallel/ops/testing/test_tensor.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::Le;

// A bound that holds and is at most ten times too large.
auto IsWithinItsBound() { return AllOf(Gt(0.1), Le(1)); }

float ToBF16(float x) { return ConvertValue<float>(ConvertValue<BF16>(x)); }

// Planted errors.
enum class Mistake {
  kNone,
  kMissingKey,          // The last key of every tile is not seen.
  kLaterKey,            // A query sees one key more.
  kNoFinalScale,        // Outputs are not rescaled after the last tile.
  kScaleLeftOut,        // Gradients of scores lack the factor of products.
  kNoDelta,             // Gradients of scores lack the softmax's second term.
  kOtherHeadsOfGroups,  // Query head h uses key head h % kv_heads.
  kDirtySum,            // The sum of dQ begins with what it held before.
};

struct NamedMistake {
  Mistake mistake;
  const char* name;
};
constexpr NamedMistake kMistakes[] = {
    {Mistake::kMissingKey, "missing key"},
    {Mistake::kLaterKey, "later key"},
    {Mistake::kNoFinalScale, "no final scale"},
    {Mistake::kScaleLeftOut, "scale left out"},
    {Mistake::kNoDelta, "no delta"},
    {Mistake::kOtherHeadsOfGroups, "other heads of groups"},
    {Mistake::kDirtySum, "dirty sum"},
};

// cuDNN's attention (cudnn_plans.cc): products in bf16 whose sums are f32, keys
// in tiles. Weights, gradients of scores, the output and gradients are rounded
// to bf16.
class CudnnModel {
 public:
  CudnnModel(AttentionProblem& problem, Mistake mistake)
      : p_(problem),
        s_(problem.sizes),
        mistake_(mistake),
        query_(Floats(problem.query)),
        key_(Floats(problem.key)),
        value_(Floats(problem.value)),
        gradient_(Floats(problem.output_gradient)) {}

  void Run() {
    const int64_t d = s_.d;
    std::vector<double> output(p_.output.size()), logs(p_.log_sum_exp.size());
    std::vector<float> query_sums(
        p_.query.size(), mistake_ == Mistake::kDirtySum ? 0.05f : 0.0f);
    std::vector<float> key_of_heads(s_.sequences * s_.keys * s_.heads * d,
                                    0.0f),
        value_of_heads(key_of_heads);
    for (row_ = 0; row_ < s_.sequences * s_.queries * s_.heads; ++row_) {
      const std::vector<float> scores = Scores();
      const std::vector<float> row = Forward(scores);
      for (int64_t j = 0; j < d; ++j) output[row_ * d + j] = ToBF16(row[j]);
      logs[row_] = log_;
      Backward(scores, row, &query_sums[row_ * d], key_of_heads,
               value_of_heads);
    }
    p_.output.Set(output);
    p_.log_sum_exp.Set(logs);
    std::vector<double> rounded(query_sums.size());
    std::transform(query_sums.begin(), query_sums.end(), rounded.begin(),
                   ToBF16);
    p_.query_gradient.Set(rounded);
    p_.key_gradient.Set(OfGroups(key_of_heads));
    p_.value_gradient.Set(OfGroups(value_of_heads));
  }

 private:
  static constexpr int64_t kTile = 128;

  static std::vector<float> Floats(const TestTensor& x) {
    const std::vector<double> values = x.values();
    return {values.begin(), values.end()};
  }

  int64_t head() const { return row_ % s_.heads; }
  int64_t query() const { return row_ / s_.heads % s_.queries; }
  int64_t sequence() const { return row_ / s_.heads / s_.queries; }
  int64_t KeyAt(int64_t k) const {
    const int64_t kv_head = mistake_ == Mistake::kOtherHeadsOfGroups
                                ? head() % s_.kv_heads
                                : head() / (s_.heads / s_.kv_heads);
    return ((sequence() * s_.keys + k) * s_.kv_heads + kv_head) * s_.d;
  }
  bool Sees(int64_t k) const {
    if (mistake_ == Mistake::kMissingKey && k % kTile == kTile - 1) {
      return false;
    }
    const int64_t later = mistake_ == Mistake::kLaterKey ? 1 : 0;
    return p_.Sees(sequence(), query(), std::max<int64_t>(k - later, 0));
  }

  float Dot(const float* a, const float* b) const {
    float sum = 0;
    for (int64_t j = 0; j < s_.d; ++j) sum += a[j] * b[j];
    return sum;
  }

  // Minus infinity for keys that the query does not see.
  std::vector<float> Scores() const {
    std::vector<float> scores(s_.keys, -std::numeric_limits<float>::infinity());
    for (int64_t k = 0; k < s_.keys; ++k) {
      if (!Sees(k)) continue;
      scores[k] = static_cast<float>(p_.scale) *
                  Dot(&query_[row_ * s_.d], &key_[KeyAt(k)]);
    }
    return scores;
  }

  // The running softmax over tiles of keys; sets log_.
  std::vector<float> Forward(const std::vector<float>& scores) {
    std::vector<float> output(s_.d, 0.0f);
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t begin = 0; begin < s_.keys; begin += kTile) {
      const int64_t end = std::min(begin + kTile, s_.keys);
      float now = largest;
      for (int64_t k = begin; k < end; ++k) now = std::max(now, scores[k]);
      if (std::isinf(now)) continue;
      const float keep = std::exp(largest - now);
      largest = now;
      sum *= keep;
      for (float& x : output) x *= keep;
      for (int64_t k = begin; k < end; ++k) {
        const float weight = std::exp(scores[k] - now);
        sum += weight;
        for (int64_t j = 0; j < s_.d; ++j) {
          output[j] += ToBF16(weight) * value_[KeyAt(k) + j];
        }
      }
    }
    log_ = largest + std::log(sum);
    if (mistake_ == Mistake::kNoFinalScale) return output;
    for (float& x : output) x /= sum;
    return output;
  }

  void Backward(const std::vector<float>& scores,
                const std::vector<float>& output, float* query_sums,
                std::vector<float>& key_of_heads,
                std::vector<float>& value_of_heads) const {
    const float* const gradient = &gradient_[row_ * s_.d];
    float delta = 0;
    for (int64_t j = 0; j < s_.d; ++j) delta += ToBF16(output[j]) * gradient[j];
    if (mistake_ == Mistake::kNoDelta) delta = 0;
    const float factor = mistake_ == Mistake::kScaleLeftOut
                             ? 1.0f
                             : static_cast<float>(p_.scale);
    for (int64_t k = 0; k < s_.keys; ++k) {
      if (std::isinf(scores[k])) continue;
      const float weight = std::exp(scores[k] - log_);
      const float slope =
          ToBF16(factor * weight * (Dot(gradient, &value_[KeyAt(k)]) - delta));
      const int64_t to =
          ((sequence() * s_.keys + k) * s_.heads + head()) * s_.d;
      for (int64_t j = 0; j < s_.d; ++j) {
        query_sums[j] += slope * key_[KeyAt(k) + j];
        key_of_heads[to + j] += slope * query_[row_ * s_.d + j];
        value_of_heads[to + j] += ToBF16(weight) * gradient[j];
      }
    }
  }

  // Sums of the heads of every group, each of which is rounded before.
  std::vector<double> OfGroups(const std::vector<float>& of_heads) const {
    const int64_t group = s_.heads / s_.kv_heads;
    std::vector<double> sums(of_heads.size() / group);
    for (size_t i = 0; i < sums.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / s_.d;
      const auto column = static_cast<int64_t>(i) % s_.d;
      float sum = 0;
      for (int64_t member = 0; member < group; ++member) {
        sum += ToBF16(of_heads[(row * group + member) * s_.d + column]);
      }
      sums[i] = ToBF16(sum);
    }
    return sums;
  }

  AttentionProblem& p_;
  const AttentionSizes& s_;
  const Mistake mistake_;
  const std::vector<float> query_, key_, value_, gradient_;
  int64_t row_ = 0;
  float log_ = 0;
};

AttentionErrors ErrorsOfModel(AttentionProblem& problem,
                              const AttentionReference& reference,
                              Mistake mistake) {
  CudnnModel(problem, mistake).Run();
  return AttentionErrorsOf(problem, reference);
}

constexpr MaskedAttentionCase kCases[] = {
    {{1, 5, 5, 2, 2, 8}, BlockKind::kCausal},
    {{3, 7, 7, 6, 2, 16}, BlockKind::kFull},
    {{2, 60, 130, 4, 2, 64}, BlockKind::kCausal},
    {{1, 300, 300, 4, 2, 64}, BlockKind::kCausal},
    {{1, 300, 300, 2, 2, 128}, BlockKind::kFull},
    {{1, 500, 500, 4, 2, 32}, BlockKind::kCausal},
};

AttentionProblem ProblemOf(const MaskedAttentionCase& c,
                           std::mt19937_64& random) {
  AttentionProblem problem(DType::kBF16, c.sizes, random);
  problem.kind = c.kind;
  return problem;
}

TEST(AttentionRoundingTest, CudnnIsWithinTheBoundsAndNearThem) {
  std::mt19937_64 random(1);
  for (const MaskedAttentionCase& c : kCases) {
    for (int trial = 0; trial < (c.sizes.keys < 200 ? 10 : 2); ++trial) {
      SCOPED_TRACE(testing::Message() << c.sizes << ", trial " << trial);
      AttentionProblem problem = ProblemOf(c, random);
      const AttentionReference reference(problem, Arithmetic::kTensorCores);
      const AttentionErrors errors =
          ErrorsOfModel(problem, reference, Mistake::kNone);
      EXPECT_THAT(errors.output, IsWithinItsBound());
      EXPECT_LE(errors.log_sum_exp, 1);
      EXPECT_THAT(errors.query_gradient, IsWithinItsBound());
      EXPECT_THAT(errors.key_gradient, IsWithinItsBound());
      EXPECT_THAT(errors.value_gradient, IsWithinItsBound());
    }
  }
}

// The bounds of arithmetic in statistics are tighter.
TEST(AttentionRoundingTest, CudnnExceedsTheBoundsOfStatistics) {
  std::mt19937_64 random(2);
  AttentionProblem problem = ProblemOf(kCases[3], random);
  const AttentionReference reference(problem, Arithmetic::kStatistics);
  const AttentionErrors errors =
      ErrorsOfModel(problem, reference, Mistake::kNone);
  EXPECT_GT(errors.output, 1);
  EXPECT_GT(errors.query_gradient, 1);
}

TEST(AttentionRoundingTest, MistakesExceedTheBounds) {
  std::mt19937_64 random(3);
  for (const MaskedAttentionCase& c : {kCases[2], kCases[3], kCases[5]}) {
    AttentionProblem problem = ProblemOf(c, random);
    const AttentionReference reference(problem, Arithmetic::kTensorCores);
    for (const NamedMistake& m : kMistakes) {
      SCOPED_TRACE(testing::Message() << c.sizes << ", " << m.name);
      const AttentionErrors errors =
          ErrorsOfModel(problem, reference, m.mistake);
      const bool is_forward = m.mistake != Mistake::kScaleLeftOut &&
                              m.mistake != Mistake::kNoDelta &&
                              m.mistake != Mistake::kDirtySum;
      if (is_forward) {
        EXPECT_GT(errors.output, 2);
      }
      EXPECT_GT(errors.query_gradient, 2);
      if (m.mistake != Mistake::kDirtySum) {
        EXPECT_GT(errors.key_gradient, 2);
      }
    }
  }
}

// Tensor cores (arXiv 2511.10909): blocks of products and the sum so far are
// aligned to the largest exponent of these and truncated, then added exactly;
// the sum is truncated again.
struct TensorCore {
  int64_t block;      // Products of an instruction's step.
  int fraction_bits;  // Of aligned terms, after the point.
  int sum_bits;       // Of sums.
  int64_t promotion;  // Products until a sum is added in f32; 0: at the end.
  bool rounds_down = false;  // Instead of towards zero.

  double Truncate(double x, int exponent, int bits) const {
    const double unit = std::ldexp(1.0, exponent - bits);
    return (rounds_down ? std::floor(x / unit) : std::trunc(x / unit)) * unit;
  }

  double Sum(const std::vector<double>& products) const {
    float promoted = 0;
    double sum = 0;
    const auto count = static_cast<int64_t>(products.size());
    for (int64_t begin = 0; begin < count; begin += block) {
      const int64_t end = std::min(begin + block, count);
      double largest = std::fabs(sum);
      for (int64_t i = begin; i < end; ++i) {
        largest = std::max(largest, std::fabs(products[i]));
      }
      if (largest > 0) {
        const int exponent = std::ilogb(largest);
        sum = Truncate(sum, exponent, fraction_bits);
        for (int64_t i = begin; i < end; ++i) {
          sum += Truncate(products[i], exponent, fraction_bits);
        }
        if (sum != 0) sum = Truncate(sum, std::ilogb(sum), sum_bits);
      }
      if (promotion != 0 && end % promotion == 0) {
        promoted += static_cast<float>(sum);
        sum = 0;
      }
    }
    return promotion == 0 ? sum : promoted + static_cast<float>(sum);
  }
};

// Products of normal numbers rounded to T and U.
template <typename T, typename U>
std::vector<double> Products(int64_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> products(count);
  for (double& product : products) {
    product = ConvertValue<double>(ConvertValue<T>(normal(random))) *
              ConvertValue<double>(ConvertValue<U>(normal(random)));
  }
  return products;
}

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

double Magnitude(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::fabs(value);
  return sum;
}

// Hopper's instructions for fp8.
TensorCore Fp8Core(int64_t promotion, bool rounds_down) {
  return {.block = 32,
          .fraction_bits = 13,
          .sum_bits = 13,
          .promotion = promotion,
          .rounds_down = rounds_down};
}

// The largest error in `trials` sums, in units of the bound; `change` is what
// goes wrong.
template <typename T, typename U, typename Change>
double LargestFp8Error(const TensorCore& core, int64_t count, int trials,
                       std::mt19937_64& random, const Change& change) {
  double largest = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> products = Products<T, U>(count, random);
    const double exact = Sum(products);
    // ExpectClose adds f32's error to the bound.
    const double bound =
        Fp8SumError(Arithmetic::kTensorCores, Magnitude(products)) +
        1e-5 * (1 + std::sqrt(static_cast<double>(count)));
    change(products);
    largest = std::max(largest, std::fabs(core.Sum(products) - exact) / bound);
  }
  return largest;
}

// The sizes of the conformance tests, and of models.
constexpr int64_t kFp8Sizes[] = {16, 80, 512, 2064, 4096};

TEST(Fp8RoundingTest, TensorCoresAreWithinTheBoundAndNearIt) {
  std::mt19937_64 random(4);
  const auto nothing = [](std::vector<double>&) {};
  double largest = 0;
  for (const int64_t count : kFp8Sizes) {
    // Fast sums are never promoted.
    for (const TensorCore& core :
         {Fp8Core(128, false), Fp8Core(128, true), Fp8Core(0, false)}) {
      SCOPED_TRACE(testing::Message()
                   << count << " products, promoted after " << core.promotion
                   << (core.rounds_down ? ", down" : ""));
      const double error = std::max(
          LargestFp8Error<F8E4M3, F8E4M3>(core, count, 500, random, nothing),
          LargestFp8Error<F8E5M2, F8E4M3>(core, count, 500, random, nothing));
      EXPECT_LE(error, 1);
      largest = std::max(largest, error);
    }
  }
  EXPECT_GT(largest, 0.1);
}

// As many sums as the conformance tests have elements.
TEST(Fp8RoundingTest, MistakesExceedTheBound) {
  std::mt19937_64 random(5);
  const TensorCore core = Fp8Core(128, false);
  for (const int64_t count : kFp8Sizes) {
    SCOPED_TRACE(count);
    const auto error = [&](const auto& change) {
      return LargestFp8Error<F8E4M3, F8E4M3>(core, count, 256, random, change);
    };
    EXPECT_GT(error([](std::vector<double>& x) { x.back() = 0; }), 2);
    EXPECT_GT(error([](std::vector<double>& x) {
                for (double& product : x) product *= 1.0625;
              }),
              2);
    EXPECT_GT(error([](std::vector<double>& x) { x[0] += x[1]; }), 2);
  }
}

// Products of bf16 are as near to their sums as ExpectClose demands.
TEST(BF16RoundingTest, TensorCoresAreWithinTheBoundsOfProducts) {
  std::mt19937_64 random(6);
  constexpr TensorCore kHopper = {
      .block = 16, .fraction_bits = 25, .sum_bits = 23, .promotion = 0};
  constexpr TensorCore kAmpere = {
      .block = 8, .fraction_bits = 24, .sum_bits = 23, .promotion = 0};
  for (const TensorCore& core : {kHopper, kAmpere}) {
    for (const int64_t count : {7, 50, 300, 2500}) {
      for (int trial = 0; trial < 500; ++trial) {
        const std::vector<double> products =
            Products<BF16, BF16>(count, random);
        TestTensor sum(DType::kF32, {1});
        sum.Set({core.Sum(products)});
        EXPECT_LE(LargestError(sum, {Sum(products)},
                               1 + std::sqrt(static_cast<double>(count))),
                  1)
            << count;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel
