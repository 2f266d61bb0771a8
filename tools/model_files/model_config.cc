#include "tools/model_files/model_config.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::model_files {
namespace {

constexpr int64_t kMostVocabulary = (int64_t{1} << 31) - 1;
constexpr int64_t kMostHidden = int64_t{1} << 20;
constexpr int64_t kMostIntermediate = int64_t{1} << 22;
constexpr int64_t kMostLayers = 4096;

absl::Status CheckRange(std::string_view name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be from 1 to ", most));
}

absl::Status CheckHeads(const ModelConfig& config) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("heads (num_attention_heads)", config.heads, kMostHidden));
  TESSERA_RETURN_IF_ERROR(CheckRange("kv_heads (num_key_value_heads)",
                                     config.kv_heads, config.heads));
  TESSERA_RETURN_IF_ERROR(CheckRange("head_size (head_dim)", config.head_size,
                                     kMostHidden / config.heads));
  if (config.heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_heads (num_key_value_heads) is ", config.kv_heads,
        "; it must divide heads (num_attention_heads), ", config.heads));
  }
  if (config.head_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_size (head_dim) is ", config.head_size,
                     "; it must be even, for rotary positions turn pairs"));
  }
  return absl::OkStatus();
}

absl::Status CheckReal(std::string_view name, double value, double least,
                       bool least_allowed, double most) {
  const bool above = least_allowed ? value >= least : value > least;
  if (above && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be ",
                   least_allowed ? "from " : "above ", least, " to ", most));
}

}  // namespace

absl::Status ModelConfig::Validate() const {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("vocabulary (vocab_size)", vocabulary, kMostVocabulary));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("hidden (hidden_size)", hidden, kMostHidden));
  TESSERA_RETURN_IF_ERROR(CheckRange("intermediate (intermediate_size)",
                                     intermediate, kMostIntermediate));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("layers (num_hidden_layers)", layers, kMostLayers));
  TESSERA_RETURN_IF_ERROR(CheckHeads(*this));
  TESSERA_RETURN_IF_ERROR(CheckRange("max_positions (max_position_embeddings)",
                                     max_positions, kMostVocabulary));
  TESSERA_RETURN_IF_ERROR(CheckReal("rope_theta", rope_theta, 0, false, 1e15));
  TESSERA_RETURN_IF_ERROR(
      CheckReal("norm_epsilon (rms_norm_eps)", norm_epsilon, 0, false, 1));
  return CheckReal("initializer_range", initializer_range, 0, true, 100);
}

int64_t ModelConfig::LayerParameterCount() const {
  const int64_t attention = 2 * QueryRows() + 2 * KvRows();
  const int64_t norms = 2;
  return hidden * (attention + 3 * intermediate + norms);
}

int64_t ModelConfig::ParameterCount() const {
  const int64_t tables = tied_embeddings ? 1 : 2;
  return layers * LayerParameterCount() + hidden * (tables * vocabulary + 1);
}

double ModelConfig::ForwardFlopsPerToken(int64_t sequence) const {
  const int64_t weights =
      layers * (LayerParameterCount() - 2 * hidden) + hidden * vocabulary;
  // Of a sequence: scores and values, 2 * QueryRows() operations for a key
  // each.
  const double keys = (static_cast<double>(sequence) + 1) / 2;
  const double attention = 4.0 * static_cast<double>(layers * QueryRows());
  return 2 * static_cast<double>(weights) + attention * keys;
}

}  // namespace tessera::model_files
