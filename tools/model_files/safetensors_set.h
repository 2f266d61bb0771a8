// The tensors of a model's directory, in one or several safetensors files:
// SafetensorsSet reads and SafetensorsSetWriter writes them; ShardIndex is the
// content of model.safetensors.index.json.
//
// clang-format off
//   TESSERA_ASSIGN_OR_RETURN(auto set, SafetensorsSet::Open("models/smollm"));
//   TESSERA_RETURN_IF_ERROR(set.ReadRows("lm_head.weight", 0, rows.view()));
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer,
//       SafetensorsSetWriter::Create("export", tensors,
//                                    /*max_file_bytes=*/int64_t{5} << 30));
//   TESSERA_RETURN_IF_ERROR(writer.Write("lm_head.weight", 0, bytes));
//   TESSERA_RETURN_IF_ERROR(writer.Commit());
// clang-format on
#ifndef TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_SET_H_
#define TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tools/model_files/safetensors_file.h"
#include "tools/model_files/safetensors_header.h"

namespace tessera::model_files {

inline constexpr int64_t kMaxIndexBytes = 100'000'000;

// Maps each tensor of a set to its file, as transformers' save_pretrained does:
//
//   {"metadata": {"total_size": 96}, "weight_map": {"w": "a.safetensors"}}
struct ShardIndex {
  std::map<std::string, std::string> weight_map = {};  // Tensor to file.
  std::optional<int64_t> total_size = {};              // Bytes of all tensors.

  friend bool operator==(const ShardIndex&, const ShardIndex&) = default;
};

// InvalidArgument if `json` is not an object, has no "weight_map", or a file
// name contains a directory. Other keys, and a total_size that is not an
// integer, are ignored.
absl::StatusOr<ShardIndex> ParseShardIndex(std::string_view json);
// InvalidArgument if a name is not UTF-8, or a file name contains a directory.
absl::StatusOr<std::string> FormatShardIndex(const ShardIndex& index);

// One file of a set.
struct ShardPlan {
  std::string file;  // "model-00001-of-00003.safetensors"
  std::vector<StoredTensor> tensors;
};

// Distributes the tensors, in order, over files of up to `max_bytes` of data
// each; a larger tensor gets its own file. A single file is named
// "model.safetensors". InvalidArgument if `max_bytes` is below 1 or TensorBytes
// rejects a shape.
absl::StatusOr<std::vector<ShardPlan>> PlanShards(
    const std::vector<StoredTensor>& tensors, int64_t max_bytes);

inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// Reads the tensors of a set. Const calls are thread-safe.
class SafetensorsSet {
 public:
  // Opens `path`, which is a .safetensors file or a directory that contains
  // model.safetensors or, if that is missing, model.safetensors.index.json and
  // its files. Reads only headers. NotFound if there is neither;
  // InvalidArgument if the index or a header is malformed, or a tensor is not
  // in the file that the index names. Tensors that the index does not list are
  // not in the set.
  static absl::StatusOr<SafetensorsSet> Open(const std::string& path);

  // All names, sorted.
  std::vector<std::string> Names() const;
  // Null if there is no such tensor.
  const StoredTensor* Find(std::string_view name) const;

  // See SafetensorsFile.
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

// Writes the tensors of a set in pieces. Not thread-safe.
class SafetensorsSetWriter {
 public:
  // The directory must exist. Creates temporary files, which the destructor
  // removes unless they are committed.
  static absl::StatusOr<SafetensorsSetWriter> Create(
      const std::string& directory, const std::vector<StoredTensor>& tensors,
      int64_t max_file_bytes,
      const std::map<std::string, std::string>& metadata = {});

  size_t file_count() const { return writers_.size(); }

  // See SafetensorsWriter.
  absl::Status Write(std::string_view name, int64_t begin,
                     std::span<const std::byte> bytes);
  absl::Status Write(std::string_view name, std::span<const std::byte> bytes);

  // Renames the files, then writes the index if there are several files, then
  // removes the index or the single file of an earlier set. Each file is
  // atomic, but the set is not: write each set to a new directory.
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
