// A step of AdamW: bf16 gradients, 8-bit moments, f32 master weights and their
// bf16 copy, with dynamic loss scaling and clipping around it.
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/small_float.h"
#include "base/status_macros.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"

absl::Status Run() {
  using namespace tessera;
  using namespace tessera::offload;
  constexpr int64_t kSize = 5000;
  std::vector<float> master(kSize, 1.0f);
  std::vector<BF16> weights(kSize), gradient(kSize, BF16(512.0f));
  const MomentFormat format = MomentFormat::Blockwise8();
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, MomentBytes(format, kSize));
  std::vector<std::byte> m(bytes), v(bytes);

  ParameterRange range = {.name = "layers.0.weight",
                          .parameter = std::span(master),
                          .gradient = std::span<const BF16>(gradient),
                          .copy = std::span(weights)};
  TESSERA_ASSIGN_OR_RETURN(range.first, MomentSpan::Over(format, kSize, m));
  TESSERA_ASSIGN_OR_RETURN(range.second, MomentSpan::Over(format, kSize, v));

  TESSERA_ASSIGN_OR_RETURN(const GradientStatistics statistics,
                           MeasureGradient(range.gradient));
  if (!statistics.IsFinite()) return absl::OkStatus();  // Lower the loss scale.
  const double unscale = 1 / 1024.0;
  const double norm = statistics.Norm() * unscale;
  TESSERA_ASSIGN_OR_RETURN(const auto adamw,
                           AdamW::Create({.learning_rate = 0.1}));
  TESSERA_RETURN_IF_ERROR(adamw->Step(
      /*step=*/1, {.unscale = unscale, .clip_factor = ClipFactor(norm, 1.0)},
      {&range, 1}));
  std::cout << "norm " << norm << ", " << bytes << " bytes a moment, weight "
            << master[0] << ", copy " << weights[0] << "\n";
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
