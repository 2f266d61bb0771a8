#include "tools/model_files/safetensors_set.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::model_files {
namespace {

bool IsDirectory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

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
  if (Exists(single)) {
    TESSERA_RETURN_IF_ERROR(set.AddAll(single));
    return set;
  }
  if (!Exists(absl::StrCat(path, "/", kIndexFile))) {
    return absl::NotFoundError(absl::StrCat(QuotedPath(path), " has neither ",
                                            kSingleFile, " nor ", kIndexFile));
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

const TensorSpec* SafetensorsSet::Find(std::string_view name) const {
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
    const std::string& directory, const std::vector<TensorSpec>& tensors,
    int64_t max_file_bytes,
    const std::map<std::string, std::string>& metadata) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ShardPlan> shards,
                           PlanShards(tensors, max_file_bytes));
  SafetensorsSetWriter set(directory);
  int64_t total = 0;
  for (const ShardPlan& shard : shards) {
    for (const TensorSpec& tensor : shard.tensors) {
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
