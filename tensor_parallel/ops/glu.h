// GluKind: the gate of a gated linear unit, y = activation(gate) * up (Shazeer,
// arXiv 2002.05202).
#ifndef TESSERA_TENSOR_PARALLEL_OPS_GLU_H_
#define TESSERA_TENSOR_PARALLEL_OPS_GLU_H_

namespace tessera::tensor_parallel {

// Both activations are g sigmoid(h(g)).
enum class GluKind {
  kSwiGlu,  // SiLU: h(g) = g. Llama, Mistral, Qwen.
  // The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415):
  // h(g) = 2 sqrt(2 / pi) (g + 0.044715 g^3). Gemma.
  kGeGlu,
};

// h of kGeGlu is gelu::kLinear g + gelu::kCubic g^3. Beyond kFar the sigmoid is
// 0 or 1 in every type, and h is constant.
namespace gelu {
inline constexpr double kLinear = 1.5957691216057308;
inline constexpr double kCubic = 0.044715 * kLinear;
inline constexpr double kFar = 30;
}  // namespace gelu

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_GLU_H_
