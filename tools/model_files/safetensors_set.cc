#include "tools/model_files/safetensors_set.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
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
  return absl::InvalidArgumentError(absl::StrCat(
      "weight_map: ", Quoted(name),
      " is not a file name; files are in the index's directory and named "
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
  std::string json = DumpJson(document, 2) + "\n";
  TESSERA_ASSIGN_OR_RETURN(const ShardIndex back, ParseShardIndex(json));
  if (back.weight_map == index.weight_map) return json;
  return absl::InvalidArgumentError(
      "weight_map: a tensor's or a file's name is not UTF-8");
}

absl::StatusOr<std::vector<ShardPlan>> PlanShards(
    const std::vector<StoredTensor>& tensors, int64_t max_bytes) {
  if (max_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "files of at most ", max_bytes, " bytes; allow at least 1"));
  }
  std::vector<ShardPlan> shards(1);
  int64_t held = 0;
  for (const StoredTensor& tensor : tensors) {
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

namespace {

// Advice for a directory without the files that Open looks for.
std::string OtherWeights(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".safetensors")) {
      return absl::StrCat("; it has ", Quoted(name), "; rename it to ",
                          kSingleFile, ", or add the index if it is a part");
    }
    for (const std::string_view end : {".bin", ".pt", ".pth", ".gguf", ".h5"}) {
      if (!absl::EndsWith(name, end)) continue;
      return absl::StrCat("; it has ", Quoted(name),
                          ", which is not read; load the model with "
                          "transformers, whose save_pretrained() writes ",
                          kSingleFile);
    }
  }
  return "";
}

absl::Status RemoveIfThere(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot remove the old ", QuotedPath(path)));
}

}  // namespace

absl::StatusOr<SafetensorsSet> SafetensorsSet::Open(const std::string& path) {
  SafetensorsSet set(path);
  if (!IsDirectory(path)) {
    TESSERA_RETURN_IF_ERROR(set.AddAll(path));
    return set;
  }
  const std::string single = absl::StrCat(path, "/", kSingleFile);
  if (PathExists(single)) {
    TESSERA_RETURN_IF_ERROR(set.AddAll(single));
    return set;
  }
  if (!PathExists(absl::StrCat(path, "/", kIndexFile))) {
    return absl::NotFoundError(absl::StrCat(QuotedPath(path), " has neither ",
                                            kSingleFile, " nor ", kIndexFile,
                                            OtherWeights(path)));
  }
  TESSERA_RETURN_IF_ERROR(set.AddIndexed(path));
  return set;
}

absl::Status SafetensorsSet::AddAll(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  for (const TensorEntry& entry : file.header().tensors) {
    file_of_[entry.spec.name] = files_.size();
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status SafetensorsSet::AddIndexed(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kIndexFile);
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ReadFile(path, kMaxIndexBytes));
  TESSERA_ASSIGN_OR_RETURN(const ShardIndex index, ParseShardIndex(json),
                           Annotate(_, QuotedPath(path)));
  absl::flat_hash_map<std::string, size_t> opened;
  for (const auto& [tensor, name] : index.weight_map) {
    const auto [place, is_new] = opened.try_emplace(name, files_.size());
    if (is_new) {
      TESSERA_ASSIGN_OR_RETURN(
          SafetensorsFile file,
          SafetensorsFile::Open(absl::StrCat(directory, "/", name)));
      files_.push_back(std::move(file));
    }
    TESSERA_RETURN_IF_ERROR(
        files_[place->second].Get(tensor).status(),
        absl::InvalidArgumentError(absl::StrCat(
            QuotedPath(path), " says that tensor ", Quoted(tensor), " is in ",
            Quoted(name), ", which has no such tensor")));
    file_of_[tensor] = place->second;
  }
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsSet::Names() const {
  std::vector<std::string> names;
  names.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const StoredTensor* SafetensorsSet::Find(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) return nullptr;
  return &files_[found->second].Find(name)->spec;
}

absl::StatusOr<const SafetensorsFile*> SafetensorsSet::FileOf(
    std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found != file_of_.end()) return &files_[found->second];
  return absl::NotFoundError(absl::StrCat(QuotedPath(path_), ": no tensor ",
                                          Quoted(name), " among the ",
                                          file_of_.size(), " there are"));
}

absl::Status SafetensorsSet::ReadBytes(std::string_view name, int64_t begin,
                                       std::span<std::byte> target) const {
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsFile* const file, FileOf(name));
  return file->ReadBytes(name, begin, target);
}

absl::Status SafetensorsSet::Read(std::string_view name,
                                  std::span<std::byte> target) const {
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsFile* const file, FileOf(name));
  return file->Read(name, target);
}

absl::Status SafetensorsSet::ReadRows(std::string_view name, int64_t first,
                                      TensorView target) const {
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsFile* const file, FileOf(name));
  return file->ReadRows(name, first, target);
}

absl::StatusOr<SafetensorsSetWriter> SafetensorsSetWriter::Create(
    const std::string& directory, const std::vector<StoredTensor>& tensors,
    int64_t max_file_bytes,
    const std::map<std::string, std::string>& metadata) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ShardPlan> shards,
                           PlanShards(tensors, max_file_bytes));
  SafetensorsSetWriter set(directory);
  int64_t total = 0;
  for (const ShardPlan& shard : shards) {
    for (const StoredTensor& tensor : shard.tensors) {
      const bool is_new =
          set.writer_of_.try_emplace(tensor.name, set.writers_.size()).second;
      if (!is_new) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", Quoted(tensor.name), " comes twice; give it once"));
      }
      set.index_.weight_map[tensor.name] = shard.file;
    }
    TESSERA_ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(absl::StrCat(directory, "/", shard.file),
                                  shard.tensors, metadata));
    total += writer.header().data_bytes();
    set.writers_.push_back(std::move(writer));
  }
  set.index_.total_size = total;
  return set;
}

absl::StatusOr<SafetensorsWriter*> SafetensorsSetWriter::WriterOf(
    std::string_view name) {
  const auto found = writer_of_.find(name);
  if (found != writer_of_.end()) return &writers_[found->second];
  return absl::NotFoundError(absl::StrCat(QuotedPath(directory_), ": tensor ",
                                          Quoted(name), " was not declared"));
}

absl::Status SafetensorsSetWriter::Write(std::string_view name, int64_t begin,
                                         std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(SafetensorsWriter* const writer, WriterOf(name));
  return writer->Write(name, begin, bytes);
}

absl::Status SafetensorsSetWriter::Write(std::string_view name,
                                         std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(SafetensorsWriter* const writer, WriterOf(name));
  return writer->Write(name, bytes);
}

absl::Status SafetensorsSetWriter::Commit() {
  for (const SafetensorsWriter& writer : writers_) {
    TESSERA_RETURN_IF_ERROR(writer.CheckComplete());
  }
  for (SafetensorsWriter& writer : writers_) {
    TESSERA_RETURN_IF_ERROR(writer.Commit());
  }
  const std::string index_path = absl::StrCat(directory_, "/", kIndexFile);
  if (writers_.size() == 1) return RemoveIfThere(index_path);
  TESSERA_ASSIGN_OR_RETURN(const std::string json, FormatShardIndex(index_));
  TESSERA_RETURN_IF_ERROR(WriteFile(index_path, json));
  return RemoveIfThere(absl::StrCat(directory_, "/", kSingleFile));
}

}  // namespace tessera::model_files
