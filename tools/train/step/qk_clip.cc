#include "tools/train/step/qk_clip.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

namespace tp = tensor_parallel;

namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Adds the factor for the weight and, if there is one, the bias.
void AddFactors(const ParameterWindow& window, const HeadScale& scale,
                std::vector<ShardedModel::RowScale>& factors) {
  const std::string name = absl::StrCat(".attention.", scale.projection, ".");
  for (const tp::Parameter* parameter : window) {
    if (!absl::StrContains(parameter->name(), name)) continue;
    factors.push_back({parameter, scale.rows, scale.factor});
  }
}

}  // namespace

std::vector<HeadScale> HeadScalesOf(const model_files::ModelConfig& model,
                                    int64_t head, double factor) {
  const double root = std::sqrt(factor);
  const int64_t size = model.head_size;
  const tp::IndexRange query = {head * size, (head + 1) * size};
  if (model.IsLatent()) {
    const int64_t nope = model.latent.nope;
    const int64_t key = head * (nope + model.latent.value);
    return {{"query_up", {query.begin, query.begin + nope}, root},
            {"query_up", {query.begin + nope, query.end}, factor},
            {"kv_up", {key, key + nope}, root}};
  }
  if (model.kv_heads < model.heads) return {{"qkv", query, factor}};
  const int64_t keys = model.QueryRows();
  return {{"qkv", query, root},
          {"qkv", {keys + query.begin, keys + query.end}, root}};
}

template <typename Function>
void QkClip::ForEachAttention(const Function& f) const {
  for (size_t window = 0; window < layers_.numbers().size(); ++window) {
    tp::TransformerBlock* const block = layers_.block(window);
    if (block == nullptr || block->attention().heads().empty()) continue;
    f(window, block->attention());
  }
}

absl::Status QkClip::Begin() {
  if (!is_on()) return absl::OkStatus();
  int64_t count = 0;
  ForEachAttention([&](size_t, tp::Attention& attention) {
    count += attention.heads().size();
  });
  const DType dtype = tp::GradientDType(layers_.options().dtype);
  TESSERA_ASSIGN_OR_RETURN(scores_, memory_.Get(dtype, {{count}}));
  TESSERA_RETURN_IF_ERROR(
      layers_.tensor().ops().Run(tp::op::Fill{kNothing, *scores_}));
  absl::Status status;
  int64_t begin = 0;
  ForEachAttention([&](size_t, tp::Attention& attention) {
    const int64_t size = attention.heads().size();
    const absl::StatusOr<TensorView> own = scores_->Narrow(0, begin, size);
    status.Update(own.status());
    if (own.ok()) attention.SetMaxScores(*own);
    begin += size;
  });
  return status;
}

absl::Status QkClip::Download() {
  TESSERA_ASSIGN_OR_RETURN(
      const tessera::Download download,
      staging_.StartDownload(
          {scores_->data(), static_cast<size_t>(scores_->size_in_bytes())}));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           download.Wait());
  std::vector<double> own(static_cast<size_t>(scores_->element_count()));
  TESSERA_RETURN_IF_ERROR(Convert(scores_->dtype(), bytes, DType::kF64,
                                  std::as_writable_bytes(std::span(own))));
  auto from = own.begin();
  ForEachAttention([&](size_t window, tp::Attention& attention) {
    const tp::IndexRange range = attention.heads();
    const int64_t layer = layers_.numbers()[window] - 1;
    std::copy_n(from, range.size(),
                largest_.begin() + layer * heads() + range.begin);
    from += range.size();
  });
  return absl::OkStatus();
}

absl::Status QkClip::Finish(collectives::Communicator& data,
                            collectives::Communicator& model) {
  if (!is_on()) return absl::OkStatus();
  ForEachAttention([](size_t, tp::Attention& attention) {
    attention.SetMaxScores(std::nullopt);
  });
  largest_.assign(static_cast<size_t>(layers_.options().model.layers * heads()),
                  kNothing);
  if (layers_.tensor().ops().computes() && scores_->element_count() > 0) {
    TESSERA_RETURN_IF_ERROR(Download());
  }
  const collectives::Buffer largest{std::span(largest_)};
  const auto max =
      collectives::AllReduceOf(largest, largest, collectives::Reduction::Max());
  TESSERA_RETURN_IF_ERROR(data.host().RunPrepared(data_max_, max));
  return model.host().RunPrepared(model_max_, max);
}

std::optional<double> QkClip::Largest() const {
  const auto largest = std::max_element(largest_.begin(), largest_.end());
  if (largest == largest_.end() || *largest == kNothing) return std::nullopt;
  return *largest;
}

std::vector<ShardedModel::RowScale> QkClip::Factors() const {
  std::vector<ShardedModel::RowScale> factors;
  if (!is_on()) return factors;
  const double most = layers_.options().qk_clip;
  for (size_t window = 0; window < layers_.numbers().size(); ++window) {
    if (layers_.block(window) == nullptr) continue;
    const int64_t layer = layers_.numbers()[window] - 1;
    for (int64_t head = 0; head < heads(); ++head) {
      const double score =
          largest_[static_cast<size_t>(layer * heads() + head)];
      if (score <= most || std::isinf(score)) continue;
      for (const HeadScale& scale :
           HeadScalesOf(layers_.options().model, head, most / score)) {
        AddFactors(layers_.windows()[window], scale, factors);
      }
    }
  }
  return factors;
}

}  // namespace tessera::train
