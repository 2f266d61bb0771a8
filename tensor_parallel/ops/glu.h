// Gated linear units (Shazeer, arXiv 2002.05202).
//
//   ops.Run(op::Glu{GluKind::kSwiGlu, gate, up, y});
#ifndef TESSERA_TENSOR_PARALLEL_OPS_GLU_H_
#define TESSERA_TENSOR_PARALLEL_OPS_GLU_H_

#include <string_view>
#include <tuple>

#include "absl/status/status.h"
#include "base/device/operation.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel {

// All activations are g sigmoid(h(g)).
enum class GluKind {
  kSwiGlu,  // SiLU: h(g) = g. Llama, Mistral, Qwen.
  // The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415):
  // h(g) = 2 sqrt(2 / pi) (g + 0.044715 g^3). Gemma.
  kGeGlu,
  // h(g) = clamped_glu::kGain g, where g is at most clamped_glu::kLimit, and
  // `up` counts as 1 + up with up between -kLimit and kLimit. GPT-OSS (arXiv
  // 2508.10925, section 2.2).
  kClampedGlu,
};

// h of kGeGlu is gelu::kLinear g + gelu::kCubic g^3. Beyond kFar the sigmoid is
// 0 or 1 in every type, and h is constant.
namespace gelu {
inline constexpr double kLinear = 1.5957691216057308;
inline constexpr double kCubic = 0.044715 * kLinear;
inline constexpr double kFar = 30;
}  // namespace gelu

namespace clamped_glu {
inline constexpr double kGain = 1.702;
inline constexpr double kLimit = 7;
}  // namespace clamped_glu

namespace op {

// y = activation(gate) * up, all [rows, n]; kClampedGlu clamps and adds first.
struct Glu {
  static constexpr std::string_view kName = "Glu";
  GluKind kind = GluKind::kSwiGlu;
  ConstTensorView gate, up;
  TensorView y;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gate, up, y); }
};

// Sets gate_gradient and up_gradient from the `gradient` of y, all [rows, n].
struct GluGradient {
  static constexpr std::string_view kName = "GluGradient";
  GluKind kind = GluKind::kSwiGlu;
  ConstTensorView gradient, gate, up;
  TensorView gate_gradient, up_gradient;

  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(gradient, gate, up, gate_gradient, up_gradient);
  }
};

using Activations = OperationList<Glu, GluGradient>;

}  // namespace op

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_GLU_H_
