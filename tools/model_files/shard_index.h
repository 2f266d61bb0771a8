// ShardIndex: which file of a set holds which tensor
// (model.safetensors.index.json).
//
//   {"metadata": {"total_size": 96}, "weight_map": {"w": "a.safetensors"}}
//
// Source: what transformers' save_pretrained writes.
#ifndef TESSERA_TOOLS_MODEL_FILES_SHARD_INDEX_H_
#define TESSERA_TOOLS_MODEL_FILES_SHARD_INDEX_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/header.h"

namespace tessera::model_files {

inline constexpr int64_t kMaxIndexBytes = 100'000'000;

struct ShardIndex {
  std::map<std::string, std::string> weight_map = {};  // File by tensor.
  std::optional<int64_t> total_size = {};              // Bytes of all tensors.

  friend bool operator==(const ShardIndex&, const ShardIndex&) = default;
};

// InvalidArgument where it is no JSON object, has no "weight_map", or a file's
// name is no plain name in the same directory. A total_size that is no integer
// is left out, other keys are passed over.
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view json);
// InvalidArgument where a name is not UTF-8 or no plain name.
absl::StatusOr<std::string> FormatShardIndex(const ShardIndex& index);

// One file of a set.
struct ShardPlan {
  std::string file;  // "model-00001-of-00003.safetensors"
  std::vector<TensorSpec> tensors;
};

// Fills files with the tensors in their order, each up to `max_bytes` of data;
// a tensor that is larger than that has a file of its own. One file is called
// "model.safetensors". InvalidArgument where `max_bytes` is below 1 or a shape
// is refused by TensorBytes.
absl::StatusOr<std::vector<ShardPlan>> PlanShards(
    const std::vector<TensorSpec>& tensors, int64_t max_bytes);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_SHARD_INDEX_H_
