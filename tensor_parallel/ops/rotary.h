// RotaryFrequencies: by how much rotary positions turn each pair of a head.
//
//   RotaryFrequencies llama_3 = {.base = 5e5};
//   RotaryFrequencies llama_31 = {.base = 5e5,
//                                 .scaling = RotaryScaling::kLlama3,
//                                 .factor = 8};
//   Rotation rotation = llama_31.Of(head_size, sequence_length);
//   SetRotaryTable(rotation, positions, table);  // once, on the host
//   ops.Run(op::Rotate{/*inverse=*/false, table, x});
//
// Sources: Su et al., RoFormer, arXiv 2104.09864, section 3.2.2; Chen et al.,
// Position Interpolation, arXiv 2306.15595, equation 4 (kLinear); Grattafiori
// et al., Llama 3, arXiv 2407.21783, section 3.4.2, with the formula of the
// published model (kLlama3); Peng et al., YaRN, arXiv 2309.00071, section 3.2
// and appendix A.2 (kYarn, kDynamic); Ding et al., LongRoPE, arXiv 2402.13753
// (kLongRope); for all of them transformers' modeling_rope_utils.py.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_ROTARY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_ROTARY_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

// How models that were trained on short sequences turn less on long ones.
enum class RotaryScaling {
  kNone,
  kLinear,    // All frequencies are divided by the factor.
  kDynamic,   // The base grows with sequences beyond the original positions.
  kYarn,      // Low ones are divided, high ones kept, others mixed by pair.
  kLongRope,  // Each is divided by a number of its own, which is another one
              // for sequences beyond the original positions.
  kLlama3,    // Low ones are divided, high ones kept, others mixed by turns.
};

// The rotation of the pairs of a head, for sequences of a certain length.
struct Rotation {
  std::vector<double> frequencies = {};  // By pair: radians a position.
  double factor = 1;                     // Multiplies the turned pairs.

  friend bool operator==(const Rotation&, const Rotation&) = default;
};

struct RotaryFrequencies {
  double base = 10000;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;
  // kLlama3: a frequency is low if it turns less than `low_turns` times over
  // the original positions, and high if it turns more than `high_turns` times.
  // kYarn: the same for the pairs with these numbers of turns (beta_slow and
  // beta_fast).
  double low_turns = 1;
  double high_turns = 4;
  int64_t original_positions = 8192;
  // The first part of each head that is turned (partial_rotary_factor).
  double partial = 1;
  // kYarn and kLongRope: Rotation::factor.
  double attention_factor = 1;
  bool truncate = true;  // kYarn: the bounds are whole pairs.
  // kLongRope: the divisors by pair.
  std::vector<double> short_factors = {}, long_factors = {};

  // The elements of a head that are turned.
  int64_t TurnedOf(int64_t head_size) const {
    return static_cast<int64_t>(static_cast<double>(head_size) * partial);
  }
  // Computed in f64 on the host, so that all devices turn by the same angles.
  // Only kDynamic and kLongRope depend on the length of the sequence.
  Rotation Of(int64_t head_size, int64_t length) const;

  // InvalidArgument, with the field, its value and what it should be, if a
  // number is not finite or out of range: base, factor, low_turns and
  // original_positions are positive, high_turns exceeds low_turns, `partial` is
  // at most 1 and turns an even number of elements of a head, and there are as
  // many divisors as pairs.
  absl::Status Validate(int64_t head_size) const;

  friend bool operator==(const RotaryFrequencies&,
                         const RotaryFrequencies&) = default;
};

// Sets each row of `table` [positions, 2 pairs] to the cosines of the angles
// position * frequencies[i] and then to their sines, times the factor. The
// table is contiguous, of f64 or f32, in memory of the host. Values are
// computed in f64 on the host, so that all devices turn by the same bits.
void SetRotaryTable(const Rotation& rotation,
                    std::span<const int64_t> positions,
                    const TensorView& table);

namespace op {

// Turns the pairs (x[i], x[i + n]) of every head of x [tokens, heads, d] in
// place by the angles of `table` [positions, 2 n], the statistics of
// SetRotaryTable; by the opposite angles if `inverse` is set (the gradient).
// Token t has row t % positions: those of a sequence are followed by those of
// the next one. Other elements stay. Su et al., arXiv 2104.09864, with Llama's
// order of the pairs.
struct Rotate {
  static constexpr std::string_view kName = "Rotate";
  bool inverse = false;
  ConstTensorView table;
  TensorView x;

  absl::Status Check(OperandChecker& check) const;
  bool IsEmpty() const { return x.element_count() == 0; }
  auto operands() { return std::tie(table, x); }
};

using Rotary = OperationList<Rotate>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_ROTARY_H_
