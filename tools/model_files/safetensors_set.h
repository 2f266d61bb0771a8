// SafetensorsSet and SafetensorsSetWriter: the tensors of a model's directory,
// in one file or in several.
//
//   TESSERA_ASSIGN_OR_RETURN(auto set, SafetensorsSet::Open("models/smollm"));
//   TESSERA_RETURN_IF_ERROR(set.ReadRows("lm_head.weight", 0, rows.view()));
//
//   TESSERA_ASSIGN_OR_RETURN(auto writer, SafetensorsSetWriter::Create(
//       "export", tensors, /*max_file_bytes=*/int64_t{5} << 30));
//   TESSERA_RETURN_IF_ERROR(writer.Write("lm_head.weight", 0, bytes));
//   TESSERA_RETURN_IF_ERROR(writer.Commit());
#ifndef TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_SET_H_
#define TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tools/model_files/safetensors_file.h"
#include "tools/model_files/safetensors_writer.h"
#include "tools/model_files/shard_index.h"

namespace tessera::model_files {

inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// Const calls may be made by several threads at once.
class SafetensorsSet {
 public:
  // Opens `path`: a .safetensors file, or a directory with model.safetensors or
  // else with model.safetensors.index.json and its files. Reads their headers,
  // no data. NotFound where there is neither; InvalidArgument where the index
  // or a header is refused or a tensor is not in the file that the index names.
  // Tensors that the index does not name are not in the set.
  static absl::StatusOr<SafetensorsSet> Open(const std::string& path);

  // All names, sorted.
  std::vector<std::string> Names() const;
  // Null where there is none.
  const TensorSpec* Find(std::string_view name) const;

  // safetensors_file.h says what these do.
  absl::Status ReadBytes(std::string_view name, int64_t begin,
                         std::span<std::byte> target) const;
  absl::Status Read(std::string_view name, std::span<std::byte> target) const;
  absl::Status ReadRows(std::string_view name, int64_t first,
                        TensorView target) const;

 private:
  explicit SafetensorsSet(std::string path) : path_(std::move(path)) {}

  absl::Status AddAll(const std::string& file);
  absl::Status AddIndexed(const std::string& directory);
  absl::StatusOr<const SafetensorsFile*> FileOf(std::string_view name) const;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  absl::flat_hash_map<std::string, size_t> file_of_;
};

// Calls of one writer are made by one thread at a time.
class SafetensorsSetWriter {
 public:
  // The directory exists. Temporary files are made at once; each of them goes
  // away where the writer is destroyed before Commit.
  static absl::StatusOr<SafetensorsSetWriter> Create(
      const std::string& directory, const std::vector<TensorSpec>& tensors,
      int64_t max_file_bytes,
      const std::map<std::string, std::string>& metadata = {});

  size_t file_count() const { return writers_.size(); }

  // safetensors_writer.h says what these do.
  absl::Status Write(std::string_view name, int64_t begin,
                     std::span<const std::byte> bytes);
  absl::Status Write(std::string_view name, std::span<const std::byte> bytes);

  // Gives the files their names, then writes the index where there are several,
  // then removes the index or the single file of an earlier set, by which
  // readers would find that one. Each file is atomic; a directory of its own
  // makes the set so.
  absl::Status Commit();

 private:
  explicit SafetensorsSetWriter(std::string directory)
      : directory_(std::move(directory)) {}

  absl::StatusOr<SafetensorsWriter*> WriterOf(std::string_view name);

  std::string directory_;
  std::vector<SafetensorsWriter> writers_;
  absl::flat_hash_map<std::string, size_t> writer_of_;
  ShardIndex index_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_SET_H_
