// One step of AdamW over state that lives in a tier, in place.
#include <iostream>
#include <memory>
#include <span>
#include <vector>

#include "base/status_macros.h"
#include "offload/optimizer/adamw.h"
#include "offload/tier/host_tier.h"

using namespace tessera;
using namespace tessera::offload;

// The floats of a block, in place.
absl::StatusOr<std::span<float>> Floats(MemoryTier& tier, const char* key,
                                        std::vector<BlockView>& views) {
  TESSERA_ASSIGN_OR_RETURN(views.emplace_back(), tier.Map(key));
  return std::span(reinterpret_cast<float*>(views.back().bytes.data()),
                   views.back().bytes.size() / sizeof(float));
}

absl::Status Run() {
  HostTier tier(std::make_shared<Accounting>("host", 12 << 10));
  const std::vector<float> ones(1000, 1), zeros(1000);
  for (const char* key : {"weight", "first", "second"}) {
    const auto& values = key[0] == 'w' ? ones : zeros;
    TESSERA_RETURN_IF_ERROR(tier.Put(key, std::as_bytes(std::span(values)),
                                     {Purpose::kOptimizer, DType::kF32}));
  }
  std::vector<BlockView> views;
  TESSERA_ASSIGN_OR_RETURN(const auto weight, Floats(tier, "weight", views));
  TESSERA_ASSIGN_OR_RETURN(const auto first, Floats(tier, "first", views));
  TESSERA_ASSIGN_OR_RETURN(const auto second, Floats(tier, "second", views));
  const std::vector<float> gradient(1000, 0.5f);
  TESSERA_ASSIGN_OR_RETURN(auto adamw, AdamW::Create({.learning_rate = 0.1}));
  const ParameterRange range = {.name = "weight",
                                .parameter = weight,
                                .gradient = std::span(gradient),
                                .first = MomentSpan::Of(first),
                                .second = MomentSpan::Of(second)};
  TESSERA_RETURN_IF_ERROR(adamw->Step(1, {}, {&range, 1}));
  std::cout << "weight " << weight[0] << ", " << tier.usage()[0].usage.current
            << " bytes in the tier\n";
  std::cout << tier.Put("more", std::as_bytes(std::span(ones)), {}).message()
            << "\n";
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
