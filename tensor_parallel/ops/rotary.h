// RotaryFrequencies: by how much rotary positions turn each pair of a head.
//
//   RotaryFrequencies llama_3 = {.base = 5e5};
//   RotaryFrequencies llama_31 = {.base = 5e5,
//                                 .scaling = RotaryScaling::kLlama3,
//                                 .factor = 8};
//   double radians = position * llama_31.Of(pair, head_size);
//
// Sources: Su et al., RoFormer, arXiv 2104.09864, section 3.2.2; Chen et al.,
// Position Interpolation, arXiv 2306.15595, equation 4 (kLinear); Grattafiori
// et al., Llama 3, arXiv 2407.21783, section 3.4.2, with the formula of the
// published model (kLlama3).
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ROTARY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ROTARY_H_

#include <cmath>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/dtype/small_float.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

// How models that were trained on short sequences turn less on long ones.
enum class RotaryScaling {
  kNone,
  kLinear,  // All frequencies are divided by the factor.
  kLlama3,  // Low ones are; high ones are kept; those between are mixed.
};

struct RotaryFrequencies {
  double base = 10000;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;
  // kLlama3: a frequency is low if it turns less than `low_turns` times over
  // the original positions, and high if it turns more than `high_turns` times.
  double low_turns = 1;
  double high_turns = 4;
  int64_t original_positions = 8192;

  // Radians a position of pair i of a head of d elements, i < d / 2.
  TESSERA_HOST_DEVICE double Of(int64_t i, int64_t d) const {
    const double frequency =
        ::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    if (scaling == RotaryScaling::kNone) return frequency;
    if (scaling == RotaryScaling::kLinear) return frequency / factor;
    constexpr double kTurn = 6.283185307179586;
    const double turns =
        static_cast<double>(original_positions) * frequency / kTurn;
    if (turns < low_turns) return frequency / factor;
    if (turns > high_turns) return frequency;
    const double kept = (turns - low_turns) / (high_turns - low_turns);
    return (1 - kept) * frequency / factor + kept * frequency;
  }

  // InvalidArgument, with the field, its value and what it should be, if a
  // number is not finite or out of range: base, factor, low_turns and
  // original_positions are positive, high_turns exceeds low_turns.
  absl::Status Validate() const;

  friend bool operator==(const RotaryFrequencies&,
                         const RotaryFrequencies&) = default;
};

namespace op {

// Turns the pairs (x[i], x[i + d/2]) of every head of x [tokens, heads, d] by
// positions[token] * frequencies.Of(i, d), in place; by the opposite angle if
// `inverse` is set (the gradient). Su et al., arXiv 2104.09864, with Llama's
// order of the pairs.
struct Rotate {
  static constexpr std::string_view kName = "Rotate";
  RotaryFrequencies frequencies;
  bool inverse = false;
  ConstTensorView positions;
  TensorView x;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return x.element_count() == 0; }
  auto operands() { return std::tie(positions, x); }
};

using Rotary = OperationList<Rotate>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ROTARY_H_
