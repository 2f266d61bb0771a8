#include "tools/model_files/shard_index.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::model_files {
namespace {

using Json = nlohmann::json;

absl::Status CheckFileName(std::string_view name) {
  if (!name.empty() && name.size() < 256 && name != "." && name != ".." &&
      name.find('/') == name.npos && name.find('\0') == name.npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("weight_map: ", Quoted(name),
                   " is no file name; files lie beside the index and are named "
                   "without a directory"));
}

std::optional<int64_t> ReadTotalSize(const Json& document) {
  const auto metadata = document.find("metadata");
  if (metadata == document.end() || !metadata->is_object()) return {};
  const auto size = metadata->find("total_size");
  if (size == metadata->end()) return {};
  return JsonInteger(*size);
}

}  // namespace

absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(
      const Json document,
      ParseJson(json, {.max_bytes = kMaxIndexBytes, .max_depth = 8}));
  const auto map =
      document.is_object() ? document.find("weight_map") : document.end();
  if (map == document.end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        "expected an object with a \"weight_map\" from tensors to files");
  }
  ShardIndex index;
  index.total_size = ReadTotalSize(document);
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map: the file of tensor ", Quoted(tensor),
                       " must be a string, found ", DescribeJson(file)));
    }
    TESSERA_RETURN_IF_ERROR(CheckFileName(file.get_ref<const std::string&>()));
    index.weight_map[tensor] = file.get<std::string>();
  }
  return index;
}

absl::StatusOr<std::string> FormatShardIndex(const ShardIndex& index) {
  Json document = {{"metadata", Json::object()},
                   {"weight_map", index.weight_map}};
  if (index.total_size.has_value()) {
    document["metadata"]["total_size"] = *index.total_size;
  }
  std::string json =
      document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  TESSERA_ASSIGN_OR_RETURN(const ShardIndex back, ParseShardIndex(json));
  if (back.weight_map == index.weight_map) return json;
  return absl::InvalidArgumentError(
      "weight_map: a tensor's or a file's name is not UTF-8");
}

absl::StatusOr<std::vector<ShardPlan>> PlanShards(
    const std::vector<TensorSpec>& tensors, int64_t max_bytes) {
  if (max_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "files of at most ", max_bytes, " bytes; allow at least 1"));
  }
  std::vector<ShardPlan> shards(1);
  int64_t held = 0;
  for (const TensorSpec& tensor : tensors) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(tensor));
    const bool fits = bytes <= max_bytes && held <= max_bytes - bytes;
    if (!fits && !shards.back().tensors.empty()) {
      shards.emplace_back();
      held = 0;
    }
    shards.back().tensors.push_back(tensor);
    held = bytes > max_bytes ? max_bytes : held + bytes;
  }
  if (shards.size() == 1) {
    shards[0].file = "model.safetensors";
    return shards;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file =
        absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

}  // namespace tessera::model_files
