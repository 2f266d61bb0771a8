#include "tools/train/step/expert_balance.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/status_macros.h"

namespace tessera::train {

namespace tp = tensor_parallel;

tp::MoeMlp* ExpertBalance::MoeOf(size_t window) {
  tp::TransformerBlock* const block = layers_.block(window);
  return block == nullptr ? nullptr : block->moe();
}

absl::Status ExpertBalance::Count(collectives::Communicator& data,
                                  collectives::Communicator& pp) {
  loads_.assign(static_cast<size_t>(layers_.options().model.layers * experts()),
                0);
  if (loads_.empty()) return absl::OkStatus();
  bool waited = false;
  for (size_t window = 0; window < layers_.numbers().size(); ++window) {
    tp::MoeMlp* const moe = MoeOf(window);
    if (moe == nullptr) continue;
    // One wait for the loads of all layers and micro-batches.
    if (!std::exchange(waited, true)) {
      TESSERA_RETURN_IF_ERROR(layers_.tensor().queue().Synchronize());
    }
    TESSERA_ASSIGN_OR_RETURN(const std::span<const int64_t> loads,
                             moe->Loads());
    std::copy(loads.begin(), loads.end(),
              loads_.begin() + (layers_.numbers()[window] - 1) * experts());
    moe->ClearLoads();
  }
  // Both copies of a stage process a part of its tokens.
  for (collectives::Communicator* group : {&data, &pp}) {
    TESSERA_RETURN_IF_ERROR(group->host().AllReduce(
        collectives::Buffer(std::span(loads_)), collectives::Reduction::Sum()));
  }
  return absl::OkStatus();
}

std::optional<double> ExpertBalance::Imbalance() const {
  std::optional<double> largest;
  for (auto layer = loads_.begin(); layer != loads_.end(); layer += experts()) {
    const int64_t sum = std::accumulate(layer, layer + experts(), int64_t{0});
    if (sum == 0) continue;
    const int64_t most = *std::max_element(layer, layer + experts());
    const double imbalance =
        static_cast<double>(most * experts()) / static_cast<double>(sum);
    largest = std::max(largest.value_or(0), imbalance);
  }
  return largest;
}

double ExpertBalance::BiasStep(int64_t layer, int64_t expert) const {
  const auto begin = loads_.begin() + layer * experts();
  const int64_t sum = std::accumulate(begin, begin + experts(), int64_t{0});
  const int64_t excess = begin[expert] * experts() - sum;
  const double sign = excess > 0 ? -1 : excess < 0 ? 1 : 0;
  return sign * layers_.options().router_bias_rate;
}

// Adapters are trained beside an unchanged base, which includes the biases.
absl::Status ExpertBalance::MoveBiases(double sign) {
  const RunOptions& options = layers_.options();
  if (loads_.empty() || !options.model.traits().mixture.sigmoid ||
      options.router_bias_rate == 0 || options.lora.rank > 0) {
    return absl::OkStatus();
  }
  for (size_t window = 0; window < layers_.numbers().size(); ++window) {
    tp::MoeMlp* const moe = MoeOf(window);
    if (moe == nullptr) continue;
    const tp::Parameter& bias = *moe->router_bias();
    std::vector<float> change;
    std::vector<double> wide;
    for (int64_t expert = 0; expert < experts(); ++expert) {
      wide.push_back(sign * BiasStep(layers_.numbers()[window] - 1, expert));
      change.push_back(static_cast<float>(wide.back()));
    }
    tp::PooledTensor memory(passes_.pool);
    TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                             memory.Reserve(bias.dtype(), {{experts()}}));
    TESSERA_RETURN_IF_ERROR(passes_.staging.Upload(
        bias.dtype() == DType::kF64 ? std::as_bytes(std::span(wide))
                                    : std::as_bytes(std::span(change)),
        {view.data(), static_cast<size_t>(view.size_in_bytes())}));
    TESSERA_RETURN_IF_ERROR(
        model_.AddToValue(bias, view, layers_.tensor().ops()));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
